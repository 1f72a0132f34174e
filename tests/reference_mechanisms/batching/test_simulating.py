from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path

import pytest

from reference_mechanisms.batching.commands import register
from reference_mechanisms.batching.costs import FILE, CostError, StepCosts, VerifyCost
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.simulating import simulate, variants
from reference_mechanisms.batching.traces.format import TRACES, Attempt, Recording, Trace, TraceError
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.batching.test_planning import SETUP

DRAFTS = 7


def traces(count: int, alpha: float, tokens: int = 40, prompt: int = 20) -> tuple[Trace, ...]:
    rng = random.Random(3)  # noqa: S311 - test data

    def attempt(rate: float) -> Attempt:
        accepted = 0
        while accepted < DRAFTS and rng.random() < rate:
            accepted += 1
        return Attempt(accepted)

    # Half of the requests are easy, half are hard.
    return tuple(
        Trace(
            prompt=prompt,
            tokens=tokens,
            attempts=tuple(attempt(alpha if n % 2 else alpha / 3) for _ in range(tokens)),
        )
        for n in range(count)
    )


def test_a_simulated_request_takes_the_steps_that_can_be_counted_by_hand() -> None:
    one = Trace(prompt=4, tokens=6, attempts=tuple(Attempt(n) for n in (2, 0, 0, 7, 0, 0)))
    costs = StepCosts(
        verify=(
            VerifyCost(requests=1, rows=1, milliseconds=3.0),
            VerifyCost(requests=1, rows=8, milliseconds=5.0),
        ),
        prefill=staircase(1, 1).prefill,
    )
    found = simulate([one], BatchSettings(slots=1, buckets=True), costs, DRAFTS)
    # Token 1 by prefill; then 2 drafts and a bonus token; then 1 of 7 counts, and the bonus token.
    assert (found.tokens, found.steps) == (6, 2)
    assert found.milliseconds == pytest.approx(4.0 + 5.0 + 5.0)
    # Five drafts can be used in the first step, of four tokens that are left one.
    assert found.rows == (1 + 4) + (1 + 1)
    assert found.padding == 3 + 6


def test_mechanisms_win_where_they_should() -> None:
    recorded, costs = traces(48, 0.85), staircase(16, DRAFTS, row=0.3)
    full = BatchSettings(slots=16, budget=True, adaptive=True, buckets=True)
    speeds = {
        name: simulate(recorded, one, costs, DRAFTS).tokens_per_second for name, one in variants(full).items()
    }
    assert speeds["without ragged"] < speeds["everything"]
    assert speeds["budget alone"] > speeds["nothing"]
    assert speeds["without budget"] < speeds["everything"]
    assert all(name in speeds for name in ("buckets alone", "without buckets", "adaptive alone"))


def test_pieces_stall_decoding_less_than_whole_prompts() -> None:
    long = traces(6, 0.5, prompt=400)
    costs = staircase(2, DRAFTS)
    whole = simulate(long, BatchSettings(slots=2, prefill_rows=None), costs, DRAFTS)
    longest = dataclasses.replace(BatchSettings(slots=2), prefill_rows=64)
    assert whole.tokens == simulate(long, longest, costs, DRAFTS).tokens
    assert whole.stalled_ms > 0.0


def test_a_table_too_small_is_refused() -> None:
    with pytest.raises(CostError, match="measure a larger one"):
        simulate(traces(4, 0.5), BatchSettings(slots=4), staircase(2, DRAFTS), DRAFTS)
    with pytest.raises(TraceError, match="an attempt for each"):
        simulate(
            [Trace(prompt=1, tokens=5, attempts=())], BatchSettings(slots=1), staircase(2, DRAFTS), DRAFTS
        )


def test_the_command_prints_every_variant_at_every_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, recorded, out = (tmp_path / name for name in ("costs.json", "traces.json", "out.json"))
    FILE.write(costs, SETUP, staircase(8, DRAFTS))
    TRACES.write(recorded, Recording(source="test", drafts=DRAFTS), traces(8, 0.7))
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(), lambda run: run, lambda folder, arm: ("", ()))
    options = parser.parse_args(
        ["batching", "simulate", str(costs), str(recorded), "--slots", "2", "8", "--out", str(out)]
    )
    assert options.run(options) == 0
    printed = capsys.readouterr().out
    assert printed.count("everything") == 2
    found = json.loads(out.read_text())
    assert found["simulated"] is True
    assert {row["variant"] for row in found["results"]["8"]} == set(
        variants(BatchSettings(slots=8, budget=True, adaptive=True, buckets=True))
    )
