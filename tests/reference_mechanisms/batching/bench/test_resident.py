from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from reference_mechanisms.batching.bench.lines import Tally
from reference_mechanisms.batching.bench.replaying import Known, ReplayedBatch
from reference_mechanisms.batching.bench.requests import request_set
from reference_mechanisms.batching.bench.resident import (
    AUTOREGRESSIVE,
    OutputsDifferError,
    Resident,
    variant_names,
)
from reference_mechanisms.batching.traces.format import Attempt, Trace, TraceError, acceptance_length
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.errors import MechanismError, RequestError
from reference_mechanisms.request import Request, Sampling
from tests.reference_mechanisms.batching.bench import small


@pytest.fixture(scope="module")
def engine() -> Resident:
    return Resident(small.parts(), *small.traces())


def test_every_variant_emits_the_same_tokens(engine: Resident) -> None:
    names = variant_names(small.settings())
    assert {"everything", "nothing", "budget alone", "without budget", AUTOREGRESSIVE} <= set(names)
    for name in names:
        found = engine.serve(name, small.settings(), small.REQUESTS)
        assert found.tokens == small.REQUESTS * small.TOKENS, name
        assert (found.variant, found.concurrency, found.requests) == (name, small.SLOTS, small.REQUESTS)
        assert found.wall_s > 0


def test_the_tail_of_a_set_is_not_counted() -> None:
    tally = Tally(requests=4, concurrency=2, began_s=10.0)
    tally.count(5, ended=1, now_s=11.0)
    with pytest.raises(ValueError, match="no request has ended"):
        _ = Tally(2, 1, 0.0).full
    tally.count(6, ended=1, now_s=12.0)  # two are left: still as many as run at a time
    tally.count(3, ended=1, now_s=13.0)
    assert tally.full == (14, 3.0)
    tally.count(9, ended=1, now_s=20.0)
    assert (tally.tokens, tally.full) == (23, (14, 3.0))


def test_the_full_load_is_a_part_of_the_whole(engine: Resident) -> None:
    found = engine.serve("everything", small.settings(2), small.REQUESTS)
    assert 0 < found.full_s <= found.wall_s
    # The last two are under way when it ends.
    assert (small.REQUESTS - 1) * small.TOKENS < found.full_tokens < found.tokens


def test_outputs_can_be_cut(engine: Resident) -> None:
    found = engine.serve("everything", small.settings(), 2, 5)
    assert found.tokens == 2 * 5


def test_acceptance_is_that_of_the_traces() -> None:
    """All drafts are verified: alone, so that no step is cut to another's."""
    recording, traces = small.traces(tokens=small.TOKENS)
    engine = Resident(small.parts(), recording, traces)
    found = engine.serve("ragged alone", small.settings(), small.REQUESTS)
    # The trace's own steps; those at an end of an output are cut there.
    assert found.acceptance_length == pytest.approx(acceptance_length(traces, small.DRAFTS), rel=0.15)
    plain = engine.serve(AUTOREGRESSIVE, small.settings(), small.REQUESTS)
    assert (plain.verifications, plain.acceptance_length) == (None, None)
    assert plain.steps is not None
    assert found.steps is not None
    assert plain.steps > 2 * found.steps


def test_logits_are_bitwise_those_without_drafts(engine: Resident) -> None:
    found = engine.hold_exact("everything", small.settings(), 4)
    assert found == (4 * small.TOKENS, 0)


def test_other_logits_are_counted(engine: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small.parts().target
    inner, calls = type(target).logits, itertools.count()

    def shaken(self: object, rows: torch.Tensor) -> torch.Tensor:
        return inner(self, rows) + 1e-3 * next(calls)  # type: ignore[arg-type]

    monkeypatch.setattr(type(target), "logits", shaken)
    assert engine.hold_exact("everything", small.settings(), 2).mismatches == 2


def test_another_token_is_an_error() -> None:
    engine = Resident(small.parts(), *small.traces())
    engine.learn(small.settings(), 2)
    for prompt, known in engine._known.items():
        engine._known[prompt] = known._replace(continuation=(*known.continuation[:-1], 96))
    with pytest.raises(OutputsDifferError, match="other tokens"):
        engine.serve("everything", small.settings(), 2)


def test_what_does_not_fit_is_refused() -> None:
    recording, traces = small.traces()
    with pytest.raises(MechanismError, match="drafter makes 5"):
        Resident(small.parts(), dataclasses.replace(recording, drafts=9), traces)
    engine = Resident(small.parts(), recording, traces)
    with pytest.raises(MechanismError, match="no variant 'all'"):
        engine.serve("all", small.settings(), 1)
    with pytest.raises(TraceError, match="there are 6 traces"):
        request_set(traces, 7, 97, 0)


def test_an_unknown_request_is_refused() -> None:
    replayed = ReplayedBatch(small.parts().new_drafter(), {}, 97, 5)
    work = request_set(small.traces()[1], 1, 97, 0)[0]
    with pytest.raises(RequestError, match="decode it first"):
        replayed.begin(0, Request(name="x", prompt=work.prompt, sampling=Sampling(max_tokens=2)))


class _Nothing:
    taps = ()

    def begin(self, slot: int, request: object) -> None: ...

    def extend(self, slot: int, taps: torch.Tensor) -> None: ...

    def propose(self, wanted: object) -> list[Proposal]:
        return []


def test_a_draft_is_right_as_far_as_the_trace_says() -> None:
    attempts = (Attempt(2, (0.9, 0.5, 0.1)), Attempt(0, (0.2, 0.2, 0.2)), Attempt(3, (0.9, 0.9, 0.9)))
    known: dict[tuple[int, ...], Known] = {
        (1,): Known((10, 11, 12, 13), Trace(prompt=1, tokens=4, attempts=attempts))
    }
    request = Request(name="x", prompt=(1,), sampling=Sampling(max_tokens=4))
    asked: list[list[list[float]]] = []

    def lengths(confidences: object) -> list[int]:
        asked.append([list(one) for one in confidences])  # type: ignore[attr-defined]
        return [1] * len(asked[-1])

    plain, shared = (ReplayedBatch(_Nothing(), known, 13, 3, one) for one in (None, lengths))
    for one in (plain, shared):
        one.begin(0, request)
    assert plain.propose([Wanted(0, (10,), 3), Wanted(0, (10,), 0)])[0].token_ids == (11, 12, (13 + 1) % 13)
    assert plain.propose([Wanted(0, (10, 11), 2)])[0].token_ids == (0, 1)
    assert shared.propose([Wanted(0, (10,), 2)])[0].token_ids == (11,)
    assert asked == [[[0.9, 0.5]]]
