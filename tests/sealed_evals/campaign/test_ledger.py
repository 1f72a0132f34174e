from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.codec import canonical_json
from harness.errors import DataError
from sealed_evals.campaign.ledger import (
    Entry,
    append,
    check_chain,
    check_head,
    next_entry,
    read_ledger,
)
from sealed_evals.campaign.records import Head

KEY = b"k" * 32


def entry(event: str = "opened", shard: str | None = None) -> Entry:
    plain = {"schema": "ledger/1", "number": 0, "previous": "", "at": "now", "campaign_sha256": "c"}
    return msgspec.convert(plain | {"event": event, "shard": shard}, Entry)


def chain(*shards: str) -> tuple[Entry, ...]:
    entries: tuple[Entry, ...] = (next_entry((), entry("started"), KEY),)
    for shard in shards:
        entries = (*entries, next_entry(entries, entry("opened", shard), KEY))
    return entries


def head(entries: tuple[Entry, ...]) -> Head:
    return Head(lines=len(entries), hash=entries[-1].hash)


def write(path: Path, entries: tuple[Entry, ...]) -> Path:
    path.write_bytes(b"".join(canonical_json(one) + b"\n" for one in entries))
    return path


def test_a_ledger_in_order_passes_with_and_without_the_key() -> None:
    entries = chain("000", "001", "002")

    check_chain(entries, "ledger")
    check_chain(entries, "ledger", KEY)
    check_head(entries, head(entries), "ledger")


FORGERIES: dict[str, tuple[Callable[[tuple[Entry, ...]], tuple[Entry, ...]], str]] = {
    "a line is missing": (lambda e: (*e[:1], *e[2:]), "line 2 does not follow"),
    "the first line is missing": (lambda e: e[1:], "line 1 does not follow"),
    "two lines are exchanged": (lambda e: (e[0], e[2], e[1], e[3]), "line 2 does not follow"),
    "a line is there twice": (lambda e: (*e, e[-1]), "line 5 does not follow"),
    "a shard is changed": (
        lambda e: (e[0], msgspec.structs.replace(e[1], shard="009"), *e[2:]),
        "line 2 was changed",
    ),
    "a line is written anew, with a hash of its own": (
        lambda e: (e[0], next_entry(e[:1], entry("opened", "009"), KEY), *e[2:]),
        "line 3 does not follow",
    ),
    "a time is changed": (
        lambda e: (*e[:3], msgspec.structs.replace(e[3], at="then")),
        "line 4 was changed",
    ),
    "a shard is opened again": (
        lambda e: (*e, next_entry(e, entry("opened", "001"), KEY)),
        "line 5: shard 001 was opened before",
    ),
    "a shard is decided that was never opened": (
        lambda e: (*e, next_entry(e, entry("decided", "007"), KEY)),
        "line 5: shard 007 was decided but never opened",
    ),
    "the ledger is started again": (
        lambda e: (*e, next_entry(e, entry("started"), KEY)),
        "line 5: a ledger has one line 'started'",
    ),
}


@pytest.mark.parametrize(("forge", "told"), FORGERIES.values(), ids=FORGERIES)
def test_every_forgery_is_named_by_its_line(
    forge: Callable[[tuple[Entry, ...]], tuple[Entry, ...]], told: str
) -> None:
    with pytest.raises(DataError, match=re.escape(told)):
        check_chain(forge(chain("000", "001", "002")), "ledger")


def test_a_chain_by_somebody_without_the_key_is_no_ledger() -> None:
    forged = chain("000")
    forged = (*forged, next_entry(forged, entry("opened", "001"), b"x" * 32))

    check_chain(forged, "ledger")  # in itself it is in order
    with pytest.raises(DataError, match=r"line 3 was not written by this campaign's controller"):
        check_chain(forged, "ledger", KEY)


def test_a_ledger_that_was_cut_or_rewritten_is_not_the_one_the_head_knows() -> None:
    entries = chain("000", "001")

    with pytest.raises(DataError, match=r"it has 2 lines, and line 3 must have"):
        check_head(entries[:-1], head(entries), "ledger")
    with pytest.raises(DataError, match=r"is not the ledger that the controller wrote"):
        check_head(chain("000", "002"), head(entries), "ledger")


def test_the_ledger_may_be_one_line_ahead_of_the_head_and_no_more() -> None:
    entries = chain("000", "001")

    check_head(entries, head(entries[:2]), "ledger")
    with pytest.raises(DataError, match=r"has 3 lines where 1 were written"):
        check_head(entries, head(entries[:1]), "ledger")


def test_a_torn_last_line_is_dropped_wherever_it_was_torn_and_the_next_one_replaces_it(
    tmp_path: Path,
) -> None:
    entries = chain("000", "001")
    whole = write(tmp_path / "whole", entries).read_bytes()
    kept = write(tmp_path / "kept", entries[:2]).read_bytes()
    for cut in (len(kept), len(kept) + 1, (len(kept) + len(whole)) // 2, len(whole) - 1):
        path = tmp_path / "ledger.jsonl"
        path.write_bytes(whole[:cut])

        found, size = read_ledger(path)
        assert found == entries[:2]
        append(path, entries[2], size)
        assert path.read_bytes() == whole


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", chain("000"))
    path.write_bytes(path.read_bytes().replace(b'"opened"', b'"peeked"'))

    with pytest.raises(DataError, match=r"ledger\.jsonl line 2: .*restore ledger\.jsonl from a copy"):
        read_ledger(path)
    with pytest.raises(DataError, match=r"cannot read .*missing"):
        read_ledger(tmp_path / "missing")
