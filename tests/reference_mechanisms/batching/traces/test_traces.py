"""Traces: recorded from steps, imposed from a seed, written and read."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from reference_mechanisms.batching.traces.commands import register
from reference_mechanisms.batching.traces.format import (
    TRACES,
    Attempt,
    Recording,
    Siblings,
    Trace,
    TraceError,
    acceptance_length,
    acceptance_rates,
    read_traces,
    steps_of,
)
from reference_mechanisms.batching.traces.imposing import Imposed, impose
from reference_mechanisms.batching.traces.recording import Recorded, Step, trace_of, traces_of

SMALL = Imposed(requests=60, prompt=9, tokens=120)


def test_a_recorded_response_is_replayed_step_by_step() -> None:
    steps = (Step(5, 3, 4, (0.9, 0.8, 0.7, 0.6, 0.5)), Step(5, 0, 1), Step(2, 2, 2))
    found = trace_of(Recorded(prompt=11, prefill=1, steps=steps))
    assert (found.prompt, found.tokens) == (11, 1 + 4 + 1 + 2)
    assert list(steps_of(found, 5)) == [3, 0, 2]
    # Inside a step a draft is worth what is left of it, so shorter drafts emit the same tokens.
    assert found.attempts[1] == Attempt(2, (0.8, 0.7, 0.6, 0.5))
    assert list(steps_of(found, 1)) == [1, 1, 0, 1]


def test_rates_are_those_of_the_steps() -> None:
    one = Trace(prompt=1, tokens=7, attempts=tuple(map(Attempt, (2, 0, 0, 0, 1, 0))))
    assert list(steps_of(one, 3)) == [2, 0, 1]
    assert acceptance_rates([one], 3) == pytest.approx((2 / 3, 1 / 3, 0))
    assert acceptance_length([one], 3) == pytest.approx(2)


def test_nothing_drafted_is_refused() -> None:
    with pytest.raises(TraceError, match="no verify step with a draft"):
        traces_of("run x, arm ar", [Recorded(3, 1, (Step(0, 0, 1),))])
    with pytest.raises(TraceError, match="emitted no token"):
        traces_of("run x, arm y", [Recorded(3, 0, (Step(1, 1, 2),))])


def test_both_lengths_are_those_imposed() -> None:
    recording, traces = impose(SMALL)
    assert recording.synthetic
    assert "6.5 at 15" in recording.source
    for drafts, length in SMALL.lengths.items():
        assert acceptance_length(traces, drafts) == pytest.approx(length, rel=0.02)
    assert impose(SMALL) == (recording, traces)
    assert impose(dataclasses.replace(SMALL, seed=1))[1] != traces


def test_requests_differ_and_confidences_tell_places_apart() -> None:
    _, traces = impose(dataclasses.replace(SMALL, lengths={15: 6.5}))
    means = [statistics.fmean(steps_of(one, 15)) for one in traces]
    assert statistics.stdev(means) > 1
    told = [(one.confidences[0], one.accepted > 0) for trace in traces for one in trace.attempts]
    middle = statistics.median(first for first, _ in told)
    sure = [happened for first, happened in told if first > middle]
    unsure = [happened for first, happened in told if first <= middle]
    assert statistics.fmean(sure) > statistics.fmean(unsure) + 0.1
    # Noisy, and on the whole what happens.
    assert statistics.fmean(first for first, _ in told) == pytest.approx(
        statistics.fmean(happened for _, happened in told), abs=0.05
    )


def test_without_spread_all_places_are_alike() -> None:
    _, traces = impose(dataclasses.replace(SMALL, lengths={7: 4.0}, spread=0.0, noise=0.0))
    assert len({one.confidences for trace in traces for one in trace.attempts}) == 1


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("lengths", {"lengths": {7: 9.0}}),
        ("lengths", {"lengths": {}}),
        ("no spread of chances", {"lengths": {15: 6.5, 7: 6.4}}),
        ("kept", {"kept": 1.0}),
        ("tokens", {"tokens": 1}),
    ],
)
def test_what_cannot_be_imposed_is_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(TraceError, match=field):
        impose(dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]


def told(folder: Path, arm: str | None) -> tuple[str, Sequence[Recorded]]:
    return f"{folder.name}, {arm}", [Recorded(4, 1, (Step(3, 2, 3), Step(3, 1, 2)))]


def test_the_command_writes_either_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(), lambda run: run, told)
    out = str(tmp_path / "traces.json")
    options = parser.parse_args(["traces", "some/run", "--arm", "mine", "--out", out])
    assert options.run(options) == 0
    recording, traces = read_traces(Path(out))
    assert (recording.source, recording.drafts, recording.synthetic) == ("run, mine", 3, False)
    assert traces[0].tokens == 6
    small = ["--requests", "20", "--tokens", "60"]
    options = parser.parse_args(["traces", "--imposed", "7=4.5", *small, "--out", out])
    assert options.run(options) == 0
    assert read_traces(Path(out))[0].synthetic
    assert "20 synthetic traces" in capsys.readouterr().out
    ranked = ["--siblings", "0.3", "0.08", "--off-spine", "0.7"]
    options = parser.parse_args(["traces", "--imposed", "7=4.5", *small, *ranked, "--out", out])
    assert options.run(options) == 0
    recording, traces = read_traces(Path(out))
    assert recording.siblings == Siblings(shares=(0.3, 0.08), off_spine=0.7)
    assert any(one.ranks[one.accepted :] for one in traces[0].attempts)
    for words in (["traces", "--out", out], ["traces", "--imposed", "x=1", "--out", out]):
        options = parser.parse_args(words)
        with pytest.raises(TraceError):
            options.run(options)


def test_a_trace_shorter_than_its_output_is_refused(tmp_path: Path) -> None:
    TRACES.write(tmp_path / "t", Recording(source="x", drafts=2), (Trace(prompt=1, tokens=3, attempts=()),))
    with pytest.raises(TraceError, match="an attempt for each"):
        read_traces(tmp_path / "t")


def test_ranks_say_what_siblings_are_worth() -> None:
    siblings = Siblings(shares=(0.4, 0.1), off_spine=0.5)
    recording, traces = impose(dataclasses.replace(SMALL, spread=0.0, lengths={7: 3.0}, siblings=siblings))
    plain = impose(dataclasses.replace(SMALL, spread=0.0, lengths={7: 3.0}))[1]
    assert recording.siblings == siblings
    assert "siblings right in 0.4, 0.1 of the misses, 0.5 off the spine" in recording.source
    attempts = [one for trace in traces for one in trace.attempts]
    assert [(one.accepted, one.confidences) for one in attempts] == [
        (one.accepted, one.confidences) for trace in plain for one in trace.attempts
    ]  # what chains are worth is as it was
    behind: list[int] = []
    for one in attempts:
        assert one.ranks[: one.accepted] == (0,) * one.accepted
        assert len(one.ranks) <= 7
        if len(one.ranks) > one.accepted:
            assert one.ranks[one.accepted] in {1, 2}
            behind += [*one.ranks[one.accepted + 1 :], *[-1] * (len(one.ranks) < 7)]
    missed = [one.ranks[one.accepted :] for one in attempts if one.accepted < 7]
    for rank, share in enumerate(siblings.shares, 1):
        found = sum(one[:1] == (rank,) for one in missed) / len(missed)
        assert found == pytest.approx(share, abs=0.02)
    chance = 0.69  # that gives 3.0 at 7 drafts
    assert sum(rank == 0 for rank in behind) / len(behind) == pytest.approx(0.5 * chance, abs=0.03)


@pytest.mark.parametrize(("shares", "off"), [((), 0.5), ((0.7, 0.4), 0.5), ((-0.1,), 0.5), ((0.3,), 1.5)])
def test_siblings_that_cannot_be_are_refused(shares: tuple[float, ...], off: float) -> None:
    with pytest.raises(TraceError, match="`siblings`: shares of 0 or more make 1 at most"):
        dataclasses.replace(SMALL, siblings=Siblings(shares=shares, off_spine=off))
