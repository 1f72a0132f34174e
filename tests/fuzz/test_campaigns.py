"""Ledgers and records of campaigns, changed by others: refused by name, never a second look at a shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.codec import canonical_json
from sealed_evals.campaign.ledger import Entry, check_chain, next_entry, read_ledger
from sealed_evals.campaign.records import ControllerKey, Head, SealedRow, ShardOpening
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, read_record
from tests.fuzz.hammering import OURS, hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import hostile_json, scrambled
from tests.sealed_evals.campaign.test_ledger import KEY, chain, entry

UNSEEN = "the row that nobody may see"
OPENING = ShardOpening(
    schema="opening/1", campaign_id="c", shard="000", rows=(SealedRow(salt="00" * 32, line=UNSEEN),)
)


@quick_and_deep
def test_a_changed_ledger_is_refused_or_is_the_same(deep: bool, tmp_path: Path) -> None:
    entries = chain("000", "001")
    good = b"".join(canonical_json(one) + b"\n" for one in entries)
    path = tmp_path / "ledger.jsonl"

    def read() -> tuple[Entry, ...]:
        found, _ = read_ledger(path)
        check_chain(found, str(path), KEY)
        return found

    def check(data: bytes) -> None:
        path.write_bytes(data)
        found = refuses_or_reads(read, str(path))
        assert found is None or found == entries[: len(found)], "a forged line was believed"  # type: ignore[arg-type]

    hammer(check, scrambled(good), deep=deep)


@quick_and_deep
def test_a_forged_line_is_never_believed(deep: bool, tmp_path: Path) -> None:
    entries = chain("000")
    path = tmp_path / "ledger.jsonl"
    forged = json.loads(canonical_json(next_entry(entries, entry("opened", "001"), b"another key")))

    def check(line: bytes) -> None:
        path.write_bytes(b"".join(canonical_json(one) + b"\n" for one in entries) + line + b"\n")

        def read() -> int:
            found, _ = read_ledger(path)
            check_chain(found, str(path), KEY)
            return len(found)

        assert refuses_or_reads(read, str(path)) is None

    hammer(check, hostile_json(forged).filter(lambda line: b"\n" not in line), deep=deep)


def said_by(read: Callable[[], object]) -> str:
    """What a refusal says; nothing where there is none."""
    try:
        read()
    except OURS as refusal:
        return str(refusal)
    return ""


RECORDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "key.json": (
        ControllerKey,
        {"schema": "controller-key/1", "campaign_id": "c", "secret": "00" * 32, "campaign_sha256": "1" * 64},
    ),
    "head.json": (Head, {"lines": 2, "hash": "0" * 64}),
    "opening.json": (ShardOpening, msgspec.to_builtins(OPENING)),
}


@quick_and_deep
@pytest.mark.parametrize("name", RECORDS)
def test_a_broken_record_is_refused_and_quotes_no_row(name: str, deep: bool, tmp_path: Path) -> None:
    kind, valid = RECORDS[name]
    path = tmp_path / name
    plain = json.loads(json.dumps(valid))

    def check(data: bytes) -> None:
        path.write_bytes(data)
        if name == "opening.json":
            assert UNSEEN not in said_by(lambda: read_record(path, kind))
        refuses_or_reads(lambda: read_record(path, kind), str(path))

    hammer(check, hostile_json(plain), deep=deep)


@quick_and_deep
def test_a_broken_campaign_is_refused_by_name(deep: bool, tmp_path: Path) -> None:
    folder = CampaignFolder(tmp_path)
    seal = {"name": "public", "rows": 1, "root": "0" * 64, "sealed_sha256": "1" * 64}
    job = json.loads((Path(__file__).parents[2] / "reports/2026-12-02-reproduce-cpu/job.json").read_bytes())
    valid = {
        **{"schema": "campaign/1", "campaign_id": "c", "created_at": "2026-12-02", "job": job, "level": 0.05},
        **{"gain": 0.0, "generator": "g", "checked_against": [], "root": "2" * 64, "key_id": "k"},
        **{"sizing": {"gain": 0.1, "spread": 0.2, "power": 0.8}, "public": seal, "shards": [seal]},
    }

    def check(data: bytes) -> None:
        folder.campaign.write_bytes(data)
        refuses_or_reads(lambda: load_campaign(folder), "campaign")

    hammer(check, hostile_json(valid), deep=deep)
