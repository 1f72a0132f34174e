"""Start a campaign: deal generated rows into a public shard and unseen ones, seal them, publish."""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.codec import canonical_json
from harness.errors import InvalidRun, UsageError
from harness.plan import Job
from harness.storage import write_atomic
from sealed_evals.campaign.canary import canary
from sealed_evals.campaign.commitment import campaign_root
from sealed_evals.campaign.controller import Controller, key_id, new_secret, refuse_unsafe_place, store
from sealed_evals.campaign.crypto import derive, mac
from sealed_evals.campaign.decide import check_launches, stock_job
from sealed_evals.campaign.ledger import Entry, append, next_entry
from sealed_evals.campaign.records import PUBLIC, Campaign, ControllerKey, Head, ShardOpening, Sizing, Test
from sealed_evals.campaign.sizing import rows_needed
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, salted, seal_shard
from sealed_evals.generator.make import GENERATOR, Drafted, generate
from sealed_evals.generator.rewording import Known


class Wanted(NamedTuple):
    """What a campaign shall be."""

    job: Job
    shards: int  # unseen ones: the most candidates that can be confirmed
    public_rows: int
    level: float
    gain: float
    sizing: Sizing
    rows: int | None = None  # of a shard; None: as many as `sizing` needs
    test: Test = "interval"


def create(
    wanted: Wanted, folder: CampaignFolder, root: Path, known: Known, now: datetime.datetime
) -> Campaign:
    """Write the campaign's folder and its key.

    The key is written first and campaign.json last: a campaign that can be read is whole.

    Args:
        wanted: what it shall be.
        folder: an empty or missing folder.
        root: the controller's folder.
        known: rows of public sets, none of which may be reworded.
        now: UTC.

    Raises:
        UsageError: a number or the plan cannot be used, the folder is not empty, or the
            controller's folder is no safe place.
        InvalidRun: a folder cannot be written.
        ModelError: `cryptography` is not installed.
    """
    size = wanted.rows if wanted.rows is not None else rows_needed(wanted.sizing, wanted.level, wanted.gain)
    if min(wanted.shards, wanted.public_rows, size) < 1 or wanted.gain < 0.0:
        raise UsageError("--shards, --public-rows and --shard-rows must be at least 1, and --gain at least 0")
    if wanted.shards > 999:
        raise UsageError(f"--shards must be at most 999, got {wanted.shards}")
    if folder.root.exists() and any(folder.root.iterdir()):
        raise UsageError(f"{folder.root} is not empty; a campaign wants a folder of its own")
    job = stock_job(wanted.job, wanted.level, size)
    check_launches(job, wanted.test, wanted.level)
    refuse_unsafe_place(root, folder.root)
    secret, campaign_id = new_secret(), secrets.token_hex(8)
    drafted = generate(derive(secret, "generator"), wanted.public_rows + wanted.shards * size, known)
    sizes = {PUBLIC: wanted.public_rows} | {f"{n:03}": size for n in range(wanted.shards)}
    sealed, files = [], {}
    for name, rows in deal(drafted, sizes, derive(secret, "deal")).items():
        lines = [row_line(name, place, row, secret) for place, row in enumerate(rows)]
        opening = ShardOpening(
            schema="opening/1", campaign_id=campaign_id, shard=name, rows=salted(lines, secret, name)
        )
        seal, files[name] = seal_shard(opening, secret)
        sealed.append(seal)
        if name == PUBLIC:
            write_atomic(folder.public_opening, canonical_json(opening))
    campaign = Campaign(
        schema="campaign/1",
        campaign_id=campaign_id,
        created_at=now.isoformat(timespec="seconds"),
        job=job,
        level=wanted.level,
        gain=wanted.gain,
        generator=GENERATOR,
        checked_against=known.names,
        sizing=wanted.sizing,
        root=campaign_root(sealed[0], sealed[1:]),
        public=sealed[0],
        shards=tuple(sealed[1:]),
        key_id=key_id(secret),
        test=wanted.test,
    )
    _publish(campaign, files, folder, Controller(root, campaign_id), secret)
    return campaign


def deal(rows: Iterable[Drafted], sizes: dict[str, int], key: bytes) -> dict[str, list[Drafted]]:
    """Deal the rows by secret lot, each kind in proportion to the shards' sizes, give or take one.

    The rows stand kind by kind, in the order of their lots; the seats of each shard are spread evenly
    along them, so that any stretch of rows meets every shard in proportion.
    """

    def lot(row: Drafted) -> bytes:
        return mac(key, canonical_json(row.turns).decode())

    ordered = sorted(rows, key=lambda row: (row.kind, lot(row)))
    seats = sorted(
        ((seat + 0.5) / size, mac(key, f"{name}/{seat}"), name)
        for name, size in sizes.items()
        for seat in range(size)
    )
    dealt: dict[str, list[Drafted]] = {name: [] for name in sizes}
    for row, (_, _, name) in zip(ordered, seats, strict=True):
        dealt[name].append(row)
    return {name: sorted(found, key=lot) for name, found in dealt.items()}


def row_line(shard: str, place: int, row: Drafted, secret: bytes) -> str:
    """Canonical JSON of a row, its canary in front of its first turn."""
    mark = canary(derive(secret, "canaries"), f"{shard}/{place}")
    first, *rest = row.turns
    turns = [f"Item {mark}.\n{first}", *rest]
    return canonical_json({"id": f"{shard}/{place}", "category": row.kind, "turns": turns}).decode()


def _publish(
    campaign: Campaign, files: dict[str, bytes], folder: CampaignFolder, controller: Controller, secret: bytes
) -> None:
    write_atomic(folder.public, files[PUBLIC])
    for seal in campaign.shards:
        write_atomic(folder.shard(seal.name), files[seal.name])
    text = canonical_json(campaign) + b"\n"
    sha256 = hashlib.sha256(text).hexdigest()
    entry = Entry(
        schema="ledger/1",
        number=0,
        previous="",
        at=campaign.created_at,
        event="started",
        campaign_sha256=sha256,
    )
    started = next_entry((), entry, derive(secret, "ledger"))
    key = ControllerKey(
        schema="controller-key/1",
        campaign_id=campaign.campaign_id,
        secret=secret.hex(),
        campaign_sha256=sha256,
    )
    store(controller, key, Head(lines=1, hash=started.hash))
    append(folder.ledger, started, 0)
    write_atomic(folder.campaign, text)
    _, written = load_campaign(folder)
    if written != sha256:
        raise InvalidRun(f"{folder.campaign} was not written as meant; start again in an empty folder")
