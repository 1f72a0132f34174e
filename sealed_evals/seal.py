"""Seals: a small file that later tells whether a set is still the same, and which row is not.

A seal proves that nothing changed; it does not prove who made it. Publish it where others cannot
rewrite it (a commit, a paper), and the set cannot be changed quietly any more.

History: seal/1 (0.1.0) first version.
"""

from __future__ import annotations

import difflib
import hashlib
from typing import Literal

from harness.codec import Record
from harness.errors import DataError
from harness.records import Prompt
from sealed_evals.catalogue import RowLayout
from sealed_evals.formats import extract, prompts_digest
from sealed_evals.merkle import merkle_root
from sealed_evals.reader import read_rows


class SealFile(Record, frozen=True):
    """Everything needed to check a set without a second copy of it."""

    schema: Literal["seal/1"]
    name: str
    layout: RowLayout  # how the prompts were read
    raw_sha256: str  # of the file as given, compressed where it is
    prompts_sha256: str
    merkle_root: str
    count: int  # rows of the set
    row_sha256: tuple[str, ...]  # of the raw bytes of every row, in order


class Difference(Record, frozen=True):
    """One way in which a file is not what was sealed."""

    kind: Literal["changed", "added", "removed", "prompts", "bytes"]
    row: int | None  # place in the set, counted from 1: sealed place if removed, else the file's
    message: str


def make_seal(name: str, data: bytes, layout: RowLayout, where: str) -> SealFile:
    """Seal a set.

    Args:
        name: of the set.
        data: content of its file, gzip or plain.
        layout: how its prompts are read.
        where: name of the file, for the error.

    Raises:
        DataError: the file is not well formed.
    """
    prompts = _prompts(name, data, layout, where)
    hashes = tuple(prompt.row_sha256 for prompt in prompts)
    return SealFile(
        schema="seal/1",
        name=name,
        layout=layout,
        raw_sha256=hashlib.sha256(data).hexdigest(),
        prompts_sha256=prompts_digest(prompts),
        merkle_root=merkle_root(hashes),
        count=len(hashes),
        row_sha256=hashes,
    )


def check_seal(seal: SealFile, data: bytes, where: str) -> tuple[Difference, ...]:
    """How a file differs from what was sealed; empty if it does not.

    Args:
        seal: made earlier.
        data: content of the file, gzip or plain.
        where: name of the file, for the error.

    Raises:
        DataError: the seal contradicts itself, or the file is not well formed.
    """
    if seal.count != len(seal.row_sha256) or merkle_root(seal.row_sha256) != seal.merkle_root:
        raise DataError(f"the seal of {seal.name!r} contradicts itself: its root is not that of its rows")
    prompts = _prompts(seal.name, data, seal.layout, where)
    found = [prompt.row_sha256 for prompt in prompts]
    differences = _rows(list(seal.row_sha256), found, prompts)
    digest = prompts_digest(prompts)
    if digest != seal.prompts_sha256:
        message = f"prompts sha256 sealed {seal.prompts_sha256}, found {digest}"
        differences.append(Difference(kind="prompts", row=None, message=message))
    raw = hashlib.sha256(data).hexdigest()
    if raw != seal.raw_sha256:
        message = f"raw file sha256 sealed {seal.raw_sha256}, found {raw}"
        differences.append(Difference(kind="bytes", row=None, message=message))
    return tuple(differences)


def _prompts(name: str, data: bytes, layout: RowLayout, where: str) -> list[Prompt]:
    return extract(read_rows(data, where), layout, name=name, category=name, where=where)


def _rows(sealed: list[str], found: list[str], prompts: list[Prompt]) -> list[Difference]:
    differences: list[Difference] = []
    matcher = difflib.SequenceMatcher(None, sealed, found, autojunk=False)
    for _, old, old_end, new, new_end in (code for code in matcher.get_opcodes() if code[0] != "equal"):
        both = min(old_end - old, new_end - new)
        for step in range(both):
            message = f"row {new + step + 1} ({prompts[new + step].prompt_id}) is not the sealed one"
            differences.append(Difference(kind="changed", row=new + step + 1, message=message))
        for index in range(new + both, new_end):
            message = f"row {index + 1} ({prompts[index].prompt_id}) was not sealed"
            differences.append(Difference(kind="added", row=index + 1, message=message))
        for index in range(old + both, old_end):
            message = f"sealed row {index + 1} is missing"
            differences.append(Difference(kind="removed", row=index + 1, message=message))
    return differences
