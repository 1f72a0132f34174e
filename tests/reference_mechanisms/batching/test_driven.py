"""Batches that drive themselves: each request gets what it would get alone, logits to the bit."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import by_size, shapes_for
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.driven import DrivenBatcher, _Seat
from reference_mechanisms.batching.opening import Runners
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.dflash import Drafted
from reference_mechanisms.drafters.slot_drafting import slot_program
from reference_mechanisms.drafters.slot_programs import Seats, SlotDraftProgram
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.slot_lane import LaneSizes, SlotLane
from reference_mechanisms.engine.slot_step import Sitting
from reference_mechanisms.engine.slots import open_slots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.errors import RequestError
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.exhaustive import slow_but
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
    DRAFTS,
    GREEDY,
    SAMPLED,
    SLOTS,
    decoded_alone,
    hold_same,
    requests,
    run,
    spoil,
    text_of,
    tokens,
)
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

pytestmark = pytest.mark.skipif(
    not prepacks(torch.float32, CPU), reason="torch's own product rounds by the row count"
)
MIXED = requests(11, (*GREEDY, *SAMPLED))
PLAIN = requests(11, (*GREEDY, Sampling(max_tokens=40)), capture=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    return load_llama(write_model(tmp_path_factory.mktemp("driven") / "target", "qwen3"), torch.float32, CPU)


@pytest.fixture(scope="module")
def alone(target: LlamaTarget) -> dict[str, dict[str, list[Event]]]:
    return {"mixed": decoded_alone(target, MIXED), "plain": decoded_alone(target, PLAIN)}


class Spoilt:
    """Runs a program whole, if there is one, and hands on right drafts with faults instead."""

    def __init__(self, inner: SlotDraftProgram | None, answers: Mapping[str, Sequence[int]]) -> None:
        self.inner, self.answers, self.drafts = inner, answers, DRAFTS
        self.rng = random.Random(3)  # noqa: S311 - test data
        self.sequences: dict[int, tuple[int, ...]] = {}
        self.lengths: set[int] = set()

    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        if self.inner is not None:
            self.inner.absorb(taps, packed, following, last)

    def draft(self, seats: Seats, drafts: int) -> Drafted:
        self.lengths.add(drafts)
        found = torch.zeros((len(seats.slots), drafts), dtype=torch.int64)
        if self.inner is not None:
            assert self.inner.draft(seats, drafts).token_ids.shape == found.shape
        for row, (slot, start) in enumerate(zip(seats.slots.tolist(), seats.starts.tolist(), strict=True)):
            right = self.sequences.get(slot, ())[start + 1 :][:drafts]
            made = [t if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for t in right]
            found[row, : len(made)] = torch.tensor(made, dtype=torch.int64)
        return Drafted(found)


class Told(DrivenBatcher):
    """Tells the program which request sits where."""

    spoilt: Spoilt | None = None

    def _prefill(self, seat: _Seat, count: int) -> bool:
        if self.spoilt is not None:
            one = seat.live.request
            self.spoilt.sequences[seat.live.slot] = (*one.prompt, *self.spoilt.answers[one.name])
        return super()._prefill(seat, count)


def lane_of(
    target: Target, program: SlotDraftProgram | None, taps: tuple[int, ...], costs: StepCosts | None
) -> SlotLane:
    most, graphs, shapes = DRAFTS + 1, Graphs(CPU), by_size(shapes_for(SLOTS, DRAFTS, costs))
    slots = open_slots(target, SLOTS, CAPACITY + most, rows=shapes[-1].rows, most=most, graphs=graphs)
    spoil(slots.cache)
    return SlotLane(slots, sizes=LaneSizes(shapes, most), taps=taps, program=program, graphs=graphs)


def engine_on(
    lane: SlotLane, settings: BatchSettings, costs: StepCosts | None = None, ahead: int = 1
) -> Told:
    return Told(lane, Turns((), text_of, CAPACITY, VOCAB, Rules()), settings, costs, ahead=ahead)


SETTINGS = {
    "ragged": BatchSettings(slots=SLOTS, buckets=True),
    "pieces of 5": BatchSettings(slots=SLOTS, buckets=True, prefill_rows=5),
    "whole prompts": BatchSettings(slots=SLOTS, buckets=True, prefill_rows=None),
    "all": BatchSettings(slots=SLOTS, buckets=True, budget=True, adaptive=True, prefill_rows=70),
}


WAYS = [(name, which, ahead) for name in SETTINGS for which in ("mixed", "plain") for ahead in (0, 1)]
FEW = [one for one in WAYS if one[1:] == ("mixed", 1) or one[0] == "ragged"]


@pytest.mark.parametrize(("name", "which", "ahead"), slow_but(FEW, WAYS))
def test_every_request_gets_what_it_would_get_alone(
    target: LlamaTarget, alone: dict[str, dict[str, list[Event]]], name: str, which: str, ahead: int
) -> None:
    todo, expected = (MIXED if which == "mixed" else PLAIN), alone[which]
    costs = staircase(SLOTS, DRAFTS) if name == "all" else None
    spoilt = Spoilt(None, {one: tokens(events) for one, events in expected.items()})
    engine = engine_on(lane_of(target, spoilt, (), costs), SETTINGS[name], costs, ahead)
    engine.spoilt = spoilt
    found = run(engine, todo, seed=2, leaving={"r1": 2, "r6": 2})
    assert hold_same(todo, found, expected) >= 9
    assert len({event.accepted for events in found.values() for event in events}) > 4
    events = [event for one in found.values() for event in one]
    assert all(event.accepted <= event.drafted <= DRAFTS for event in events)
    # A second batch on the same lane, while a step of the first may be under way.
    again = engine_on(engine._lane, SETTINGS[name], costs, ahead)
    again.spoilt = spoilt
    assert hold_same(todo, run(again, todo, seed=8), expected) == len(todo)


def test_autoregressive_too(target: LlamaTarget, alone: dict[str, dict[str, list[Event]]]) -> None:
    lane = lane_of(target, None, (), None)
    for todo, which in ((MIXED, "mixed"), (PLAIN, "plain")):
        assert hold_same(todo, run(engine_on(lane, SETTINGS["ragged"]), todo, 5), alone[which]) == len(todo)


@pytest.mark.parametrize("name", slow_but(("dflash", "eagle3"), NETWORKS))
def test_a_step_is_started_before_the_one_in_front_is_read(
    target: LlamaTarget, alone: dict[str, dict[str, list[Event]]], name: str
) -> None:
    """With every drafter beside it, and with its own drafts."""
    bound = bind(NETWORKS[name]().float(), target, "drafter")
    inner = slot_program(bound, 4, SLOTS, CAPACITY + DRAFTS)
    spoilt = Spoilt(inner, {one: tokens(events) for one, events in alone["plain"].items()})
    spoilt.drafts = 4
    lane = lane_of(target, spoilt, bound.taps, None)
    order: list[str] = []
    step, receive = lane.step, lane.receive

    def started(sittings: Sequence[Sitting], shape: object, drafts: int) -> None:
        order.append("s")
        step(sittings, shape, drafts)  # type: ignore[arg-type]

    def read() -> Sequence[Sequence[int]]:
        order.append("r")
        return receive()

    lane.step, lane.receive = started, read  # type: ignore[method-assign]
    engine = engine_on(lane, SETTINGS["ragged"])
    engine.spoilt = spoilt
    assert hold_same(PLAIN, run(engine, PLAIN, seed=4), alone["plain"]) == len(PLAIN)
    assert "srsrsr" in "".join(order)
    assert "sssr" not in "".join(order)
    assert spoilt.lengths == {4}
    own = lane_of(target, inner, bound.taps, None)
    assert hold_same(PLAIN, run(engine_on(own, SETTINGS["ragged"]), PLAIN, 4), alone["plain"]) == len(PLAIN)


def test_its_own_drafts_are_those_of_the_loop_that_asks(target: LlamaTarget) -> None:
    """Where nothing is accepted but what the drafter got right: as many tokens of it in as many steps."""
    bound = bind(NETWORKS["dflash"]().float(), target, "drafter")
    todo, runners = requests(4, (Sampling(max_tokens=40),), capture=False), Runners()
    drafter = runners.drafters(target, SLOTS, CAPACITY)(bound, Drafting(drafts=4))
    turns = Turns((), text_of, CAPACITY, VOCAB, Rules())
    runner = runners.of(target, SLOTS, CAPACITY, 5, None, bound.taps)
    asked = Batcher(runner, turns, Drafts(drafter, 4), SETTINGS["ragged"])
    lane = lane_of(target, slot_program(bound, 4, SLOTS, CAPACITY), bound.taps, None)
    found = []
    for engine in (asked, engine_on(lane, SETTINGS["ragged"], ahead=0)):
        for one in todo:
            engine.submit(one)
        events: dict[str, list[tuple[tuple[int, ...], int]]] = {one.name: [] for one in todo}
        while engine.busy:
            for name, event in engine.step():
                assert isinstance(event, Event)
                events[name].append((event.token_ids, event.accepted))
        found.append(events)
    assert found[0] == found[1]


def test_prompts_join_in_pieces_while_others_decode(target: LlamaTarget) -> None:
    engine = engine_on(lane_of(target, None, (), None), BatchSettings(slots=2, prefill_rows=5), ahead=1)
    engine.submit(Request(name="a", prompt=(3,), sampling=Sampling(max_tokens=30)))
    engine.submit(Request(name="b", prompt=tuple(range(40, 61)), sampling=Sampling(max_tokens=3)))
    heard: list[list[str]] = []
    while not any("b" in names for names in heard):
        heard.append([name for name, _ in engine.step()])
        assert engine.planned is not None
        assert sum(piece.rows for piece in engine.planned.prefill) <= 5 or len(heard) == 1
    assert heard[2:-1] == [["a"]] * (len(heard) - 3)
    assert len(heard) >= 5


def test_a_device_that_stands_elsewhere_is_refused(target: LlamaTarget) -> None:
    lane = lane_of(target, None, (), None)
    engine = engine_on(lane, SETTINGS["ragged"], ahead=0)
    engine.submit(Request(name="a", prompt=(3, 4), sampling=Sampling(max_tokens=30)))
    engine.step()
    engine.step()
    lane.load(0, 5, 17, 9)
    with pytest.raises(ValueError, match="slot 0: the device stands at position 17, the host at 3"):
        engine.step()


def test_logits_that_are_no_numbers_end_their_request(tmp_path: Path) -> None:
    broken = load_llama(write_model(tmp_path / "target"), torch.float32, CPU)
    lane = lane_of(broken, None, (), None)
    engine = engine_on(lane, SETTINGS["ragged"], ahead=1)
    for name in ("a", "b"):
        engine.submit(Request(name=name, prompt=(3, 4), sampling=Sampling(max_tokens=30)))
    engine.step()
    engine.step()
    with torch.inference_mode():
        broken._final_norm.fill_(torch.nan)
    found = dict(outcome for _ in range(3) for outcome in engine.step())
    assert all(isinstance(one, RequestError) for one in found.values())
    assert set(found) == {"a", "b"}
    assert not engine.busy
