"""Anyone's check of a campaign: nothing here needs the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.errors import DataError
from sealed_evals.campaign.commitment import check_opening
from sealed_evals.campaign.ledger import check_chain, read_ledger
from sealed_evals.campaign.records import Campaign, ShardOpening
from sealed_evals.campaign.vault import (
    CampaignFolder,
    check_sealed,
    load_campaign,
    plain_lines,
    read_record,
    read_sealed,
)


class CampaignState(NamedTuple):
    """Where a campaign stands, and what is wrong with it."""

    campaign: Campaign
    opened: int
    accepted: int
    rejected: int
    revealed: int  # shards whose rows are published and fit the commitment
    problems: tuple[str, ...]


def check_campaign(folder: CampaignFolder) -> CampaignState:
    """Hold the campaign's folder against its own published record.

    The record itself must be compared with where it was published, by its root; no file beside it
    can vouch for it.

    Raises:
        DataError: campaign.json or the ledger cannot be read.
    """
    campaign, sha256 = load_campaign(folder)
    entries, _ = read_ledger(folder.ledger)
    problems = list(_sealed(folder, campaign))
    try:
        check_chain(entries, str(folder.ledger))
    except DataError as error:
        problems.append(str(error))
    if any(entry.campaign_sha256 != sha256 for entry in entries):
        problems.append(f"{folder.ledger}: belongs to another campaign.json")
    decided = [entry for entry in entries if entry.event == "decided"]
    revealed = 0
    if any(entry.event == "revealed" for entry in entries):
        found = list(_revealed(folder, campaign))
        revealed = len(campaign.shards) - len(found)
        problems += found
    return CampaignState(
        campaign=campaign,
        opened=sum(entry.event == "opened" for entry in entries),
        accepted=sum(entry.accepted is True for entry in decided),
        rejected=sum(entry.accepted is False for entry in decided),
        revealed=revealed,
        problems=tuple(problems),
    )


def _sealed(folder: CampaignFolder, campaign: Campaign) -> Iterator[str]:
    """The public rows and the encrypted shards are the published ones."""
    try:
        data = read_sealed(folder.public)
        check_sealed(data, campaign.public, str(folder.public))
        opening = read_record(folder.public_opening, ShardOpening)
        check_opening(opening, campaign)
        if plain_lines(opening.rows) != data:
            yield f"{folder.public_opening}: opens other rows than {folder.public.name}"
    except DataError as error:
        yield str(error)
    for seal in campaign.shards:
        try:
            check_sealed(read_sealed(folder.shard(seal.name)), seal, str(folder.shard(seal.name)))
        except DataError as error:
            yield str(error)


def _revealed(folder: CampaignFolder, campaign: Campaign) -> Iterator[str]:
    for seal in campaign.shards:
        path = folder.revealed / f"{seal.name}.json"
        try:
            opening = read_record(path, ShardOpening)
            check_opening(opening, campaign)
            if opening.shard != seal.name:
                yield f"{path}: opens shard {opening.shard}; reveal the campaign again"
        except DataError as error:
            yield str(error)
