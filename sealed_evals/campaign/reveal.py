"""The end of a campaign: all rows and salts are published, so that anyone can check the commitment."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from harness.codec import canonical_json
from harness.storage import write_atomic
from sealed_evals.campaign.confirm import open_ledger
from sealed_evals.campaign.controller import Controller, held, load_key
from sealed_evals.campaign.ledger import Entry
from sealed_evals.campaign.vault import (
    CampaignFolder,
    check_sealed,
    load_campaign,
    open_shard,
    read_sealed,
    shard_key,
)


def reveal(folder: CampaignFolder, root: Path, now: Callable[[], datetime.datetime]) -> int:
    """Publish the openings of all shards, used or not; no candidate can be confirmed after.

    The ledger says so first; a reveal that was cut short is finished by another.

    Args:
        folder: of the campaign.
        root: the controller's folder.
        now: time of the ledger's entry.

    Returns:
        How many shards were revealed.

    Raises:
        DataError: campaign, key, ledger or a shard is not what it was.
        InvalidRun: a confirmation is running, or a file cannot be written.
    """
    campaign, sha256 = load_campaign(folder)
    controller = Controller(root, campaign.campaign_id)
    with held(controller):
        secret = load_key(controller, campaign, sha256)
        ledger = open_ledger(folder, controller, secret)
        files = {seal.name: read_sealed(folder.shard(seal.name)) for seal in campaign.shards}
        for seal in campaign.shards:
            check_sealed(files[seal.name], seal, str(folder.shard(seal.name)))
        if all(entry.event != "revealed" for entry in ledger.entries):
            ledger.record(
                Entry(
                    schema="ledger/1",
                    number=0,
                    previous="",
                    at=now().isoformat(timespec="seconds"),
                    event="revealed",
                    campaign_sha256=sha256,
                )
            )
        for name, data in files.items():
            opening = open_shard(data, shard_key(secret, name), campaign, name, str(folder.shard(name)))
            write_atomic(folder.revealed / f"{name}.json", canonical_json(opening))
    return len(files)
