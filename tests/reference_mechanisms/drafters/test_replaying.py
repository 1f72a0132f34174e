from __future__ import annotations

import statistics

import pytest

from reference_mechanisms.drafters.replaying import chance_of, draw_trace
from reference_mechanisms.errors import DrafterError


@pytest.mark.parametrize(("length", "drafts"), [(1.0, 3), (6.5, 15), (2.0, 1), (3.3, 4)])
def test_the_chance_gives_the_acceptance_length(length: float, drafts: int) -> None:
    chance = chance_of(length, drafts)
    assert sum(chance**n for n in range(drafts + 1)) == pytest.approx(length)


def test_no_chance_gives_more_tokens_than_a_step_has() -> None:
    with pytest.raises(DrafterError, match="give 1 to 4"):
        chance_of(4.5, 3)


def test_traces_have_the_length_asked_for_on_average_and_fill_the_output() -> None:
    traces = [draw_trace(6.5, 15, 400, seed) for seed in range(80)]
    counts = [count for trace in traces for count in trace]
    assert 1 + statistics.fmean(counts) == pytest.approx(6.5, abs=0.25)
    assert max(counts) == 15
    assert len(set(traces)) == len(traces)
    assert draw_trace(6.5, 15, 400, 3) == traces[3]
    for trace in traces:
        emitted = 1 + sum(count + 1 for count in trace)
        assert emitted >= 400 > emitted - trace[-1] - 1
