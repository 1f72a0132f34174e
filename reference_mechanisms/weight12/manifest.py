"""What a packed file says about itself, in the `__metadata__` of its safetensors header."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from reference_mechanisms.weight12.digests import BLANK, SEAL
from reference_mechanisms.weight12.errors import CorruptError
from reference_mechanisms.weight12.layout import VERSION

KEY_VERSION = "weight12.version"
KEY_MANIFEST = "weight12.manifest"


class Codes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a packed tensor adds to its entry.

    Attributes:
        palettes: P, rows of `ptab`.
        raw_rows: R, rows of `rawval`.
        sha256: of the stored arrays, lo | code | pidx | ptab | rawrow | rawval.
        fold64: of the bf16 patterns, see `digests.fold64`.
    """

    palettes: int
    raw_rows: int
    sha256: str
    fold64: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor: either packed (`codes`) or stored as it was (`kept` says why).

    Attributes:
        sha256: of the tensor's bytes in the source file.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    kept: str | None = None
    codes: Codes | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All tensors of a file, and the file they came from.

    Attributes:
        tensors: in the order of the source's bytes.
        source_header: the source's header, to give the same file back.
        source_sha256: of the whole source file.
    """

    tensors: dict[str, Entry]
    source_header: str
    source_sha256: str


def to_metadata(manifest: Manifest) -> dict[str, str]:
    """The metadata of a packed file, its seal still blank."""
    return {
        "format": "pt",
        KEY_VERSION: str(VERSION),
        KEY_MANIFEST: msgspec.json.encode(manifest).decode(),
        SEAL: BLANK,
    }


def from_metadata(metadata: Mapping[str, str], where: str) -> Manifest:
    """The manifest of a packed file.

    Raises:
        CorruptError: it is no packed file, of another version, or its manifest is broken.
    """
    version = metadata.get(KEY_VERSION)
    if version is None:
        raise CorruptError(f"{where}: not packed with weight12: its header has no {KEY_VERSION}")
    if version != str(VERSION):
        raise CorruptError(f"{where}: weight12 version {version}; this program reads version {VERSION}")
    try:
        manifest = msgspec.json.decode(metadata.get(KEY_MANIFEST, ""), type=Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"{where}: the manifest is broken ({error}); get the file again") from None
    for name, entry in manifest.tensors.items():
        if (entry.kept is None) == (entry.codes is None):
            raise CorruptError(f"{where}: tensor {name} must be either packed or kept in the manifest")
    return manifest
