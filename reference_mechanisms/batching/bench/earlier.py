"""What runs before found of other loads and variants: a bench may be run in parts, into one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reference_mechanisms.batching.bench.beside import Found, Timed
from reference_mechanisms.batching.bench.lines import Served
from reference_mechanisms.weight12.plugin.step_times.engine import Facts

SAME = ("machine", "shape", "weights", "traces_sha256", "prompts_seed")  # else results do not belong together


def read_earlier(path: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """A raw file of the same work on the same machine; empty if there is none.

    Args:
        path: of the file.
        head: of this run's.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or any(found.get(field) != head[field] for field in SAME):
        return {}
    return found


def earlier_served(earlier: Mapping[str, Any], timed: Sequence[Served]) -> list[Served]:
    """What was timed of loads and variants that are not among these."""
    mine = {(one.concurrency, one.variant) for one in timed}
    told = map(_served, earlier.get("timed", ()))
    return [one for one in told if (one.concurrency, one.variant) not in mine]


def with_earlier(found: Found, earlier: Mapping[str, Any]) -> Found:
    """Together with what was found of other loads."""
    mine = {*found.best, *(one.served.concurrency for one in (*found.timed, *found.tried))}

    def others(field: str) -> list[Timed]:
        told = (
            Timed(engine=one["engine"], round=one.get("round", 0), served=_served(one))
            for one in earlier.get(field, ())
        )
        return [one for one in told if one.served.concurrency not in mine]

    best = {int(load): drafts for load, drafts in earlier.get("best_drafts", {}).items()}
    facts = msgspec.convert(earlier.get("engines", {}), dict[str, Facts])
    return Found(
        facts={**facts, **found.facts},
        faults=found.faults,
        tried=[*others("tried"), *found.tried],
        best={**best, **found.best},
        timed=[*others("timed"), *found.timed],
        gpu=[*earlier.get("gpu", ()), *found.gpu],
        rounds=found.rounds,
    )


def _served(told: Mapping[str, Any]) -> Served:
    fields = {name: told[name] for name in Served.__struct_fields__ if name in told}
    return msgspec.convert(fields, Served)
