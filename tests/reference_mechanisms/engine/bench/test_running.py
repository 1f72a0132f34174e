"""The bench end to end on a small dummy target: it emits what `ar` does and accepts what the trace says."""

from __future__ import annotations

import pytest
import torch

from reference_mechanisms.drafters.replaying import draw_trace
from reference_mechanisms.engine.bench import running
from reference_mechanisms.engine.bench.running import Bench, Load, OutputsDifferError
from reference_mechanisms.engine.bench.waterfall import Work
from tests.reference_mechanisms.engine.bench import small

LOAD = Load(prompt=9, output=40, requests=2, seed=1, acceptance_length=3.0)
CPU = torch.device("cpu")


def no_record(work: object) -> list[Work]:
    """Two steps, as a profiler would tell them; the work is not done."""
    names = ("_settle", "_add_norm", "_settle")
    return [Work(name, 10.0 * place, 10.0 * place + 4) for place, name in enumerate(names)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(running, "record", no_record)
    return Bench(small.target(CPU, torch.float64), LOAD, lambda text: None)


def test_replayed_drafts_are_accepted_as_their_traces_say(bench: Bench) -> None:
    assert bench.autoregressive()["acceptance_length"] == 1
    assert bench.profiled()["steps"] == 1
    drafts = small.BLOCK - 1
    found = bench.speculative(small.drafter(bench._target), drafts)
    lengths = []
    for number in range(LOAD.requests):
        trace = draw_trace(LOAD.acceptance_length, drafts, LOAD.output, LOAD.seed + number)
        left, counts = LOAD.output - 1, []
        for count in trace:  # the last step is cut at the end of the output
            counts.append(min(count, left - 1))
            left -= counts[-1] + 1
        lengths.append(1 + sum(counts) / len(counts))
    assert found["acceptance_length"] == pytest.approx(sum(lengths) / len(lengths), abs=0.01)
    assert found["acceptance_length"] > 1.5
    assert found["exact_tokens"] == LOAD.requests * LOAD.output


def test_another_token_is_refused(bench: Bench) -> None:
    bench.autoregressive()
    known = bench._known[0]
    wrong = (*known.token_ids[:-1], (known.token_ids[-1] + 1) % small.VOCAB)
    with pytest.raises(OutputsDifferError, match="the first difference is at 39"):
        running._hold_same(wrong, known.token_ids, "k = 5", 0)


def test_verification_alone_is_replayed_too(bench: Bench) -> None:
    bench.autoregressive()
    found = bench.speculative(None, 3)
    assert 1.5 < found["acceptance_length"] < 4
