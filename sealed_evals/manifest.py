"""Manifests of the public sets: with them a report can be held against a set that is not here.

A manifest tells, of each row, the hash of its bytes and the hash of its formatted turns. It holds no
text, so it may be stored where the set itself may not.

History: manifest/1 (0.1.0) first version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Literal

from harness.codec import Record, canonical_json, from_json
from harness.errors import DataError
from harness.records import Prompt, PromptSet
from sealed_evals.catalogue import SetEntry
from sealed_evals.merkle import merkle_root


class Manifest(Record, frozen=True):
    """What is known of a pinned set without its text."""

    schema: Literal["manifest/1"]
    name: str
    licence: str
    raw_sha256: str
    prompts_sha256: str
    merkle_root: str  # over `row_sha256`
    keys: tuple[str, ...]  # of the rows, in order; a prompt's id is "<name>/<key>"
    row_sha256: tuple[str, ...]  # of the raw bytes
    turns_sha256: tuple[str, ...]  # of the canonical JSON of the formatted turns


def turns_sha256(prompt: Prompt) -> str:
    """sha256 (hex) of what the target is asked."""
    return hashlib.sha256(canonical_json(prompt.turns)).hexdigest()


def make_manifest(whole: PromptSet) -> Manifest:
    """The manifest of a whole set, verified and not drawn from."""
    return Manifest(
        schema="manifest/1",
        name=whole.name,
        licence=whole.licence,
        raw_sha256=whole.raw_sha256,
        prompts_sha256=whole.prompts_sha256,
        merkle_root=whole.merkle_root,
        keys=tuple(prompt.prompt_id.removeprefix(f"{whole.name}/") for prompt in whole.prompts),
        row_sha256=tuple(prompt.row_sha256 for prompt in whole.prompts),
        turns_sha256=tuple(turns_sha256(prompt) for prompt in whole.prompts),
    )


def load_manifest(entry: SetEntry) -> Manifest:
    """The manifest of a pinned set, as shipped.

    Raises:
        DataError: there is none, or it contradicts itself or the catalogue.
    """
    where = f"sealed_evals/manifests/{entry.name}.json"
    file = resources.files("sealed_evals") / "manifests" / f"{entry.name}.json"
    if not file.is_file():
        raise DataError(f"{where} is missing; install the package again")
    manifest = from_json(file.read_bytes(), Manifest, where)
    lengths = {len(manifest.keys), len(manifest.row_sha256), len(manifest.turns_sha256)}
    pins = (manifest.name, manifest.raw_sha256, manifest.prompts_sha256)
    if (
        pins != (entry.name, entry.raw_sha256, entry.prompts_sha256)
        or lengths != {entry.rows}
        or merkle_root(manifest.row_sha256) != manifest.merkle_root
    ):
        raise DataError(f"{where} is not the manifest of the pinned set; install the package again")
    return manifest


def foreign(manifest: Manifest, prompts: Sequence[Prompt], *, rows_too: bool) -> list[str]:
    """Ids of the prompts that are not rows of the set.

    Args:
        manifest: of the set.
        prompts: said to be of it.
        rows_too: whether their raw bytes must be the file's (the hub stores rows otherwise).
    """
    known = {
        f"{manifest.name}/{key}": (row, turns)
        for key, row, turns in zip(manifest.keys, manifest.row_sha256, manifest.turns_sha256, strict=True)
    }
    found = []
    for prompt in prompts:
        row, turns = known.get(prompt.prompt_id, ("", ""))
        if turns != turns_sha256(prompt) or (rows_too and row != prompt.row_sha256):
            found.append(prompt.prompt_id)
    return found
