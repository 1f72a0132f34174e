"""Level one and the target, one behind the other: the output is the target's whatever level one does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.calibration import NoDrafter, ReplayDrafter
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter, Proposal, Wanted
from reference_mechanisms.drafters.trained import Drafting, Ends, TrainedDrafter
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.verification.two_level.holding import Holding, HoldingDrafter
from reference_mechanisms.verification.two_level.level_one import rewindable
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.drafters.networks import FULL, dflash, eagle3
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.verification.two_level.decoding import (
    CAPACITY,
    NODES,
    SAMPLINGS,
    decoded,
    recordings,
    requests,
    said,
    steps,
)
from tests.reference_mechanisms.verification.two_level.first_levels import LyingLevel

HOLDING = Holding(rounds=3, tokens=9)
INNER: dict[str, Callable[[dict[tuple[int, ...], tuple[int, ...]]], Drafter]] = {
    "none": lambda _known: NoDrafter(),
    "ngram": lambda _known: NgramDrafter(4, 1, 3),
    "replay": lambda known: ReplayDrafter(3, known),
    "trees": lambda known: RandomTrees(known, VOCAB, 4, NODES),
}


def holding(level_one: Target, inner: Drafter, how: Holding = HOLDING, slots: int = 3) -> HoldingDrafter:
    return HoldingDrafter(level_one, rewindable(level_one, slots, CAPACITY + NODES), inner, how, (EOS,))


@pytest.mark.parametrize(
    ("sampling", "lies"),
    [("sampled", 1.0), ("stop token", 0.3), ("penalties", 0.3)],
)
def test_the_output_is_the_targets_whatever_level_one_says(dense: Target, sampling: str, lies: float) -> None:
    holds(dense, sampling, lies, ("trees", "none") if lies == 1.0 else INNER)


@pytest.mark.parametrize(("sampling", "lies"), [("greedy", 1.0)])
def test_so_it_is_on_a_target_with_recurrent_layers(hybrid: Target, sampling: str, lies: float) -> None:
    holds(hybrid, sampling, lies, ("trees",))


def holds(target: Target, sampling: str, lies: float, inner: Iterable[str]) -> None:
    batch = requests(SAMPLINGS[sampling])
    plain = said(decoded(target, batch))
    known = recordings(target, requests())
    for number, name in enumerate(inner):
        level_one = LyingLevel(target, lies, seed=number)
        events = decoded(target, batch, holding(level_one, INNER[name](known)))
        assert said(events) == plain
        accepted = max(event.accepted for event in steps(events))
        assert accepted <= 1 if lies == 1.0 else accepted > 1
        drafted = max(event.drafted for event in steps(events))
        assert 2 < drafted <= HOLDING.tokens


def test_a_level_one_that_is_the_target_is_believed_to_the_last_token(dense: Target) -> None:
    """It holds as many tokens as it may, all are kept, and it reads each token once."""
    for one in requests(SAMPLINGS["sampled"]):
        level_one = LyingLevel(dense, 0.0)
        events = steps(decoded(dense, [one], holding(level_one, NoDrafter(), Holding(rounds=5, tokens=5))))
        assert all(event.accepted == event.drafted for event in events[:-1])
        assert {event.drafted for event in events[:-1]} == {5}
        read = sum(level_one.rows) - len(one.prompt)
        assert read == 5 * len(events) + sum(event.drafted == 5 for event in events[:-1]) - (
            5 - events[-1].drafted
        )


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_rounds_and_tokens_are_bounds(dense: Target, rounds: int) -> None:
    known = recordings(dense, requests())
    for tokens in (1, 2, 7):
        how = Holding(rounds=rounds, tokens=tokens)
        drafted = [
            event.drafted
            for event in steps(decoded(dense, requests(), holding(dense, ReplayDrafter(2, known), how)))
        ]
        assert max(drafted) == min(tokens, 3 * rounds)


def test_level_one_stops_where_it_is_not_sure(dense: Target) -> None:
    def held(how: Holding) -> list[int]:
        return [
            event.drafted for event in steps(decoded(dense, requests(), holding(dense, NoDrafter(), how)))
        ]

    assert max(held(Holding(rounds=6, tokens=6))) == 6
    assert max(held(Holding(rounds=6, tokens=6, confidence=0.999))) == 1
    assert max(held(Holding(rounds=6, tokens=6, margin=1e6))) == 1


def test_level_one_holds_nothing_behind_a_stop(dense: Target) -> None:
    batch = requests(Sampling(max_tokens=24))
    output = recordings(dense, batch)[batch[0].prompt]
    stop = next(token for place, token in enumerate(output) if place > 2 and token not in output[:place])
    batch = requests(Sampling(max_tokens=24, stop_token_ids=(stop,)))[:1]
    (event,) = steps(decoded(dense, batch, holding(dense, NoDrafter(), Holding(rounds=20, tokens=20))))
    assert event.drafted == output.index(stop)
    assert event.finish_reason == "stop"


class RightTrees(NoDrafter):
    """Trees whose second children are what the target says."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def begin(self, slot: int, request: Request) -> None:
        self.prompt = request.prompt

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [
            self.tree((*self.prompt, *one.token_ids)) if one.limit > 1 else Proposal(()) for one in wanted
        ]

    def tree(self, ids: tuple[int, ...]) -> Proposal:
        first = self.says(ids)
        second = self.says((*ids, first))
        wrong = [(token + 1) % VOCAB for token in (first, second)]
        return Proposal((wrong[0], first, wrong[1], second), parents=(-1, -1, 1, 1))

    def says(self, ids: tuple[int, ...]) -> int:
        rows = Rows(ids, range(len(ids)), (Segment(0, 0, len(ids)),))
        hidden = self.target.forward(rows, self.target.new_cache(1, len(ids))).hidden
        return int(self.target.logits(hidden[-1:]).argmax())


DRAFTERS: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda _target: NoDrafter(),
    "right trees": RightTrees,
    "ngram": lambda _target: NgramDrafter(3, 1, 2),
    "dflash": lambda target: trained(dflash(FULL, 4, VOCAB, target.config.hidden_size, own=True), target),
    "eagle3": lambda target: trained(eagle3(VOCAB, target.config.hidden_size), target),
    "eagle3, trees": lambda target: trained(eagle3(VOCAB, target.config.hidden_size), target, tree=6),
}


def trained(network: Network, target: Target, tree: int | None = None) -> Drafter:
    bound = Bound(network.float(), (0, 1), Ends(target.embed, target.logits))
    return bound.new_drafter(Drafting(drafts=3, tree=tree))


def tapped(target: Target, ids: Sequence[int], taps: Sequence[int]) -> Tensor:
    rows = Rows(ids, range(len(ids)), (Segment(0, 0, len(ids)),))
    found = target.forward(rows, target.new_cache(1, len(ids)), taps).taps
    return torch.cat(found, dim=-1) if found else torch.empty(len(ids), 0)


def diverged(target: Target, make: Callable[[Target], Drafter], seed: int) -> bool:
    """Whether, after random acceptances, they hold anything else than ones that just read the output."""
    rng = random.Random(seed)  # noqa: S311 - test data
    request = requests(Sampling(max_tokens=40))[0]

    def begun(emitted: Sequence[int]) -> HoldingDrafter:
        drafter = holding(target, make(target), Holding(rounds=3, tokens=8), slots=1)
        drafter.begin(0, request)
        drafter.extend(0, tapped(target, (*request.prompt, *emitted[:-1]), drafter.taps))
        return drafter

    emitted = [97]
    one = begun(emitted)
    for _ in range(4):
        wanted = [Wanted(0, tuple(emitted), 40 - len(emitted))]
        (held,) = one.propose(wanted)
        if [held] != begun(emitted).propose(wanted):
            return True
        kept = held.token_ids[: rng.randint(0, len(held.token_ids))]
        before = len(request.prompt) + len(emitted) - 1
        emitted += (*kept, rng.choice((97, 98, 99)))
        states = tapped(target, (*request.prompt, *emitted[:-1]), one.taps)
        one.extend(0, states[before:])
    return False


@pytest.mark.parametrize("name", DRAFTERS)
def test_both_levels_and_the_drafter_stand_where_the_output_stands(dense: Target, name: str) -> None:
    assert not diverged(dense, DRAFTERS[name], 0)


def test_so_they_do_on_a_target_with_recurrent_layers(hybrid: Target) -> None:
    assert not diverged(hybrid, DRAFTERS["right trees"], 1)


def test_a_drafter_that_does_not_forget_is_seen(dense: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests."""
    for owner in (NgramDrafter, TrainedDrafter):
        monkeypatch.setattr(owner, "rewind", lambda _self, _slot: None)
    assert any(diverged(dense, DRAFTERS["ngram"], seed) for seed in range(4))
    with pytest.raises((ValueError, RuntimeError)):  # its context is longer than the output
        diverged(dense, DRAFTERS["dflash"], 0)


def test_states_that_do_not_go_back_are_seen(hybrid: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests."""
    monkeypatch.setattr(HybridCache, "_replay", lambda *_: None)
    assert diverged(hybrid, DRAFTERS["none"], 0)


def test_more_layers_than_level_one_has_are_refused(dense: Target) -> None:
    class Reads(NoDrafter):
        taps = (1,)

        def extend(self, slot: int, taps: torch.Tensor) -> None:
            pass

        def mark(self, slot: int) -> None:
            pass

        def rewind(self, slot: int) -> None:
            pass

    level_one = dense.shallow(1)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="reads layer 1, and level one ends behind 1 layers"):
        holding(level_one, Reads())
    assert holding(level_one, Reads(), Holding(rounds=1, tokens=9)).taps == (1,)
