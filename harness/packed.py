"""Files of a report that lie compressed: `NAME.xz` stands for NAME, so that a tree can keep large reports.

`xz -9 responses.jsonl` makes one; digests in a report are always those of the unpacked bytes.
"""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

from harness.errors import DataError

MOST = 2**32  # bytes of one unpacked file: more is an accident or an attack
MEMORY = 2**28  # bytes that the decoder may take for its dictionary; xz -9 wants 2**26


def packed(path: Path) -> Path:
    """Where the compressed twin of a file lies."""
    return path.with_name(path.name + ".xz")


def is_stored(path: Path) -> bool:
    """Whether a file is there, plain or compressed."""
    return path.is_file() or packed(path).is_file()


def stored_bytes(path: Path, most: int = MOST) -> bytes:
    """The bytes of a file, unpacked if only its compressed twin is there.

    Args:
        path: name of the plain file.
        most: bytes, unpacked, above which the file is refused.

    Raises:
        OSError: neither can be read.
        DataError: the compressed file is broken, cut short or too large.
    """
    twin = packed(path)
    if path.is_file() or not twin.is_file():
        return path.read_bytes()
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        data = decoder.decompress(twin.read_bytes(), max_length=most + 1)
    except lzma.LZMAError as error:
        raise DataError(f"cannot unpack {twin}: {error}; fetch the file again") from None
    if len(data) > most:
        raise DataError(f"{twin} holds more than {most} bytes; this is no file of a report")
    if not decoder.eof or decoder.unused_data:
        raise DataError(f"cannot unpack {twin}: it is cut short, or more follows; fetch it again")
    return data


def stored_digest(path: Path) -> str:
    """sha256 (hex) of a file's unpacked bytes.

    Raises:
        OSError: the file cannot be read.
        DataError: it cannot be unpacked.
    """
    return hashlib.sha256(stored_bytes(path)).hexdigest()
