"""Whether a report is on the prompts it names: held against manifests and campaigns, without the sets.

Hashes alone are compared; no target is needed. Whether the tokens are right is another question:
`specpilot-harness check` answers that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import DataError
from harness.oracle.stored import StoredRun, load_run
from harness.packed import is_stored, stored_digest
from harness.records import Prompt
from harness.results import SetSummary
from sealed_evals.campaign.commitment import check_opening
from sealed_evals.campaign.ledger import check_chain, read_ledger
from sealed_evals.campaign.opening import OPENING
from sealed_evals.campaign.records import Campaign, ShardOpening
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, read_record
from sealed_evals.catalogue import Catalogue, SetEntry
from sealed_evals.manifest import foreign, load_manifest

SHOWN = 3  # prompts of one kind of problem


class Sealed(NamedTuple):
    """What holding a report against its seals gave."""

    problems: tuple[str, ...]  # why the seal is broken
    notes: tuple[str, ...]  # what cannot be held against anything
    held: tuple[str, ...]  # sets whose prompts are what the report says


def verify_report(root: Path, catalogue: Catalogue, campaign: CampaignFolder | None) -> Sealed:
    """Hold a report's prompts against the sets it names.

    Args:
        root: folder of the report.
        catalogue: of the pinned sets.
        campaign: folder of the campaign, for reports on its shards.

    Raises:
        DataError: a file of the report cannot be read.
    """
    run = load_run(root)
    problems, notes, held = list(_files(root, run)), [], []
    names = {summary.name for summary in run.report.sets}
    strange = sorted({line.prompt.set_name for line in run.prompts} - names)
    problems += [
        f"prompts.jsonl: holds prompts of {name!r}, which the report does not name" for name in strange
    ]
    for summary in run.report.sets:
        prompts = [line.prompt for line in run.prompts if line.prompt.set_name == summary.name]
        if len(prompts) != summary.drawn:
            problems.append(
                f"set {summary.name}: {summary.drawn} prompts were drawn, {len(prompts)} are there"
            )
        if summary.name in catalogue.names:
            found = list(_pinned(catalogue.entry(summary.name), summary, prompts))
        elif summary.split != "public":
            found = list(_unseen(root, summary, prompts, campaign))
        else:
            notes.append(f"set {summary.name}: a file of the user's own, held against nothing")
            continue
        problems += found
        held += [] if found else [summary.name]
    return Sealed(tuple(problems), tuple(notes), tuple(held))


def _files(root: Path, run: StoredRun) -> Iterator[str]:
    """The files beside the report are those it was written with."""
    for name, sha256 in run.report.files.items():
        found = stored_digest(root / name) if is_stored(root / name) else "nothing"
        if found != sha256:
            yield f"{name}: sha256 {sha256} in the report, found {found}"
    if run.report.job != run.job or run.report.plan.hash != run.job.hash:
        yield "report.json: its job or plan hash is not that of job.json"


def _pinned(entry: SetEntry, summary: SetSummary, prompts: Sequence[Prompt]) -> Iterator[str]:
    manifest = load_manifest(entry)
    from_hub = summary.source.startswith("hub ")  # which keeps rows in bytes of its own
    pins = {"rows": entry.rows, "prompts_sha256": entry.prompts_sha256}
    if not from_hub:
        pins |= {"raw_sha256": entry.raw_sha256, "merkle_root": manifest.merkle_root}
    for field, pinned in pins.items():
        if getattr(summary, field) != pinned:
            yield f"set {entry.name}: `{field}` is {getattr(summary, field)}, pinned {pinned}"
    strangers = foreign(manifest, prompts, rows_too=not from_hub)
    if strangers:
        yield f"set {entry.name}: {len(strangers)} prompts are no rows of it: {', '.join(strangers[:SHOWN])}"


def _unseen(
    root: Path, summary: SetSummary, prompts: Sequence[Prompt], folder: CampaignFolder | None
) -> Iterator[str]:
    if folder is None:
        yield f"set {summary.name}: is shard {summary.split} of a campaign; name its folder with --campaign"
        return
    campaign, sha256 = load_campaign(folder)
    opening = read_record(root / OPENING, ShardOpening)
    try:
        check_opening(opening, campaign)
    except DataError as error:
        yield str(error)
        return
    if opening.shard != summary.split or summary.merkle_root != _root(campaign, opening.shard):
        yield f"set {summary.name}: the report is on shard {summary.split}, the opening of {opening.shard}"
    turns = sorted(tuple(json.loads(row.line)["turns"]) for row in opening.rows)
    if sorted(prompt.turns for prompt in prompts) != turns:
        yield f"set {summary.name}: prompts.jsonl does not hold the rows of shard {opening.shard}"
    yield from _told(folder, opening.shard, stored_digest(root / "report.json"), sha256)


def _told(folder: CampaignFolder, shard: str, report: str, sha256: str) -> Iterator[str]:
    """The ledger tells of the opening, and of this very report."""
    entries, _ = read_ledger(folder.ledger)
    check_chain(entries, str(folder.ledger))
    decided = [entry for entry in entries if entry.event == "decided" and entry.shard == shard]
    if not decided or decided[0].evidence != report or decided[0].campaign_sha256 != sha256:
        yield f"ledger.jsonl: no verdict on shard {shard} rests on this report"


def _root(campaign: Campaign, shard: str) -> str:
    return next(seal.root for seal in campaign.shards if seal.name == shard)
