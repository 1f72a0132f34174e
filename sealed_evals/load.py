"""Load an evaluation set for a run: find it, check its pins, draw its prompts.

Nothing that fails a check is ever returned: a run is on the pinned prompts or it does not start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from harness import paths
from harness.errors import DataError, UsageError
from harness.plan import SetSpec
from harness.records import Prompt, PromptSet
from sealed_evals.catalogue import HubSource, SetEntry, load_catalogue
from sealed_evals.formats import extract, prompts_digest
from sealed_evals.merkle import merkle_root
from sealed_evals.reader import read_rows
from sealed_evals.sources import Found, LoadDataset, find, own_file
from sealed_evals.splits import draw

OWN_LICENCE = "not stated (a file of the user's own)"


def load_set(
    spec: SetSpec, *, evals_dir: Path | None, seed: int, load_dataset: LoadDataset | None = None
) -> PromptSet:
    """The prompts a plan asks for, drawn from a verified set.

    Args:
        spec: name and count, or path and field of a file of the user's own.
        evals_dir: folder of original files; None takes `SPECPILOT_EVALS_DIR` if it is set.
        seed: of the draw.
        load_dataset: in place of `datasets.load_dataset`.

    Raises:
        UsageError: unknown set or split, or more prompts wanted than the set holds.
        DataError: the set is not found, is not the pinned one, or is not well formed.
    """
    if spec.split != "public":
        raise UsageError(f"set {spec.name!r}: no split {spec.split!r}; the only split is 'public'")
    catalogue = load_catalogue()
    if spec.path is not None:
        whole = own_set(spec.name, own_file(spec, catalogue.names))
    else:
        whole = pinned_set(catalogue.entry(spec.name), evals_dir, load_dataset)
    if spec.count > whole.rows:
        raise UsageError(
            f"set {spec.name!r}: `count` asks for {spec.count} prompts, the set holds {whole.rows}"
        )
    return msgspec.structs.replace(whole, prompts=draw(whole.prompts, spec.count, seed))


def pinned_set(
    entry: SetEntry, evals_dir: Path | None, load_dataset: LoadDataset | None = None, *, hub: bool = True
) -> PromptSet:
    """All prompts of a set of the catalogue, verified.

    Args:
        entry: the set.
        evals_dir: folder of original files; None takes `SPECPILOT_EVALS_DIR` if it is set.
        load_dataset: in place of `datasets.load_dataset`.
        hub: whether the hub may be asked.

    Raises:
        SetNotFound: no source has it.
        DataError: what was found is not the pinned set; the message names expected and found
            hashes of the raw file and of the prompts.
    """
    folder = evals_dir if evals_dir is not None else paths.evals_dir()
    found = find(entry, folder, load_dataset, hub=hub)
    from_hub = found.source.startswith("hub ")  # the hub keeps rows, not the original file
    raw = hashlib.sha256(found.data).hexdigest()
    try:
        prompts = _extract(found, entry.name, entry.category)
    except DataError as error:
        raise _mismatch(entry, found, raw, f"none ({error})") from None
    digest = prompts_digest(prompts)
    as_pinned = digest == entry.prompts_sha256 and len(prompts) == entry.rows
    if not as_pinned or (raw != entry.raw_sha256 and not from_hub):
        hint = _trap(entry.hub, prompts) if from_hub else ""
        raise _mismatch(entry, found, raw, f"{digest} of {len(prompts)} rows{hint}")
    source = found.source
    if from_hub and entry.hub is not None and not source.endswith(f"@{entry.hub.revision}"):
        source += " (same content, other revision)"
    return _prompt_set(entry.name, entry.licence, source, raw, digest, prompts)


def own_set(name: str, found: Found) -> PromptSet:
    """All prompts of a user's file.

    Raises:
        DataError: the file is not well formed or holds no prompt; the message names the row.
    """
    prompts = _extract(found, name, name)
    raw = hashlib.sha256(found.data).hexdigest()
    return _prompt_set(name, OWN_LICENCE, found.source, raw, prompts_digest(prompts), prompts)


def _extract(found: Found, name: str, category: str) -> list[Prompt]:
    rows = read_rows(found.data, found.where)
    return extract(rows, found.layout, name=name, category=category, where=found.where)


def _prompt_set(
    name: str, licence: str, source: str, raw: str, digest: str, prompts: list[Prompt]
) -> PromptSet:
    return PromptSet(
        name=name,
        split="public",
        source=source,
        licence=licence,
        raw_sha256=raw,
        prompts_sha256=digest,
        merkle_root=merkle_root([prompt.row_sha256 for prompt in prompts]),
        rows=len(prompts),
        prompts=tuple(prompts),
    )


def _mismatch(entry: SetEntry, found: Found, raw: str, prompts: str) -> DataError:
    """The refusal of what is not the pinned set, with the expected and the found hashes."""
    hashes = f"prompts sha256 expected {entry.prompts_sha256} of {entry.rows} rows, found {prompts}"
    mend = f"name a folder with the original {entry.file} with --evals-dir"
    if not found.source.startswith("hub "):
        hashes = f"raw file sha256 expected {entry.raw_sha256}, found {raw}; {hashes}"
        mend = "get the original file, or run this one under another name with `path`"
    return DataError(f"{found.where} is not the pinned set {entry.name!r}: {hashes}; {mend}")


def _trap(hub: HubSource | None, prompts: list[Prompt]) -> str:
    """What is known about a corrupt copy, if this is the one."""
    trap = hub.trap if hub is not None else None
    if trap is None:
        return ""
    for prompt in prompts:
        if prompt.prompt_id.partition("/")[2] == trap.key and any(trap.contains in t for t in prompt.turns):
            return f"; a known fault of this copy: {trap.tells}"
    return ""
