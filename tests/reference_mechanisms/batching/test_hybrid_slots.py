"""Batches of hybrid targets in steps of fixed shape: the bits of one-token steps of each request alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import BucketRunner, shapes_for
from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.slot_drafting import slot_program
from reference_mechanisms.engine import slot_hybrid
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.slot_hybrid import HybridSlots, SlotHybridCache, slot_bytes
from reference_mechanisms.engine.slots import open_slots, open_tree_slots
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.errors import TargetError
from reference_mechanisms.kernels.slots import delta
from reference_mechanisms.kernels.slots.delta import TORCH_SLOT_DELTA, KeptRows, SlotStates
from reference_mechanisms.kernels.step.delta import DeltaLog
from reference_mechanisms.request import Event, Sampling
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.loading import load_target
from tests.exhaustive import slow_but
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
    DRAFTS,
    GREEDY,
    SAMPLED,
    SLOTS,
    Spoiling,
    decoded_alone,
    hold_same,
    requests,
    run,
    spoil,
    text_of,
    tokens,
)
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.batching.test_driven import Spoilt, engine_on, lane_of
from tests.reference_mechanisms.engine.test_static_steps import WIDTH
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB

pytestmark = pytest.mark.skipif(
    not prepacks(torch.float32, CPU), reason="torch's own product rounds by the row count"
)
MIXED = requests(8, (*GREEDY, *SAMPLED))
PLAIN = requests(8, (*GREEDY, Sampling(max_tokens=40)), capture=False)
ANSWERS = dict[str, list[Event]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, short_pieces: None) -> HybridTarget:
    folder = write_hybrid(
        tmp_path_factory.mktemp("slots") / "target",
        "qwen3_5",
        hidden_size=WIDTH,
        num_hidden_layers=3,
        full_attention_interval=2,
        initializer_range=0.2,  # wide, so that greedy output is varied
    )
    found = load_target(folder, torch.float32, CPU)
    assert isinstance(found, HybridTarget)
    return found


@pytest.fixture(scope="module")
def alone(target: HybridTarget) -> dict[str, ANSWERS]:
    return {"mixed": decoded_alone(target, MIXED), "plain": decoded_alone(target, PLAIN)}


def batcher(target: HybridTarget, drafter: Drafter, settings: BatchSettings) -> Batcher:
    table = staircase(SLOTS, DRAFTS) if settings.budget else None
    shapes = shapes_for(settings.slots, DRAFTS, table)
    runner = BucketRunner(target, settings.slots, CAPACITY, DRAFTS + 1, shapes, Graphs(CPU))
    spoil(runner.cache)
    turns = Turns((), text_of, CAPACITY, VOCAB, Rules())
    return Batcher(runner, turns, Drafts(drafter, DRAFTS), settings, table)


SETTINGS = {
    "ragged": BatchSettings(slots=SLOTS, buckets=True),
    "lockstep": BatchSettings(slots=SLOTS, buckets=True, ragged=False, prefill_rows=5),
    "all": BatchSettings(
        slots=SLOTS, buckets=True, budget=True, adaptive=True, cohorts=True, prefill_rows=70
    ),
}


@pytest.mark.parametrize("name", slow_but(("lockstep", "all"), SETTINGS))
def test_where_the_host_decides_every_request_gets_what_it_would_get_alone(
    target: HybridTarget, alone: dict[str, ANSWERS], name: str
) -> None:
    expected = alone["mixed"]
    drafter = Spoiling({one: tokens(events) for one, events in expected.items()}, seed=1)
    engine = batcher(target, drafter, SETTINGS[name])
    found = run(engine, MIXED, seed=2, leaving={"r1": 3, "r6": 2})
    assert hold_same(MIXED, found, expected) >= 6
    assert len({event.accepted for events in found.values() for event in events}) > 3


@pytest.mark.parametrize("ahead", slow_but([1], [0, 1]))
@pytest.mark.parametrize("which", ["mixed", pytest.param("plain", marks=pytest.mark.slow)])
def test_where_the_device_leads_too(
    target: HybridTarget, alone: dict[str, ANSWERS], which: str, ahead: int
) -> None:
    """Requests whose tokens the host decides on sit beside others; a second batch takes the lane over."""
    todo, expected = (MIXED if which == "mixed" else PLAIN), alone[which]
    spoilt = Spoilt(None, {one: tokens(events) for one, events in expected.items()})
    lane = lane_of(target, spoilt, (), None)
    for seed, leaving in ((2, {"r1": 2, "r6": 2}), (8, {})):
        engine = engine_on(lane, SETTINGS["ragged"], ahead=ahead)
        engine.spoilt = spoilt
        found = run(engine, todo, seed=seed, leaving=leaving)
        assert hold_same(todo, found, expected) >= len(todo) - len(leaving)
        assert len({event.accepted for events in found.values() for event in events}) > 4


@pytest.mark.parametrize(
    ("which", "led"),
    slow_but([("mixed", False), ("plain", True)], itertools.product(("mixed", "plain"), (False, True))),
)
def test_steps_without_drafts_take_the_same_way(
    target: HybridTarget, alone: dict[str, ANSWERS], which: str, *, led: bool
) -> None:
    todo = MIXED if which == "mixed" else PLAIN
    engine: BatchEngine = (
        engine_on(lane_of(target, None, (), None), SETTINGS["ragged"])
        if led
        else batcher(target, NoDrafter(), SETTINGS["ragged"])
    )
    assert hold_same(todo, run(engine, todo, seed=5), alone[which]) == len(todo)


@pytest.mark.parametrize("name", slow_but(["dflash"], ["dflash", "eagle3"]))
def test_drafters_with_weights_lead_hybrid_batches(
    target: HybridTarget, alone: dict[str, ANSWERS], name: str
) -> None:
    bound = bind(NETWORKS[name]().float(), target, "drafter")
    program = slot_program(bound, 4, SLOTS, CAPACITY + DRAFTS)
    lane = lane_of(target, program, bound.taps, None)
    assert hold_same(PLAIN, run(engine_on(lane, SETTINGS["ragged"]), PLAIN, 4), alone["plain"]) == len(PLAIN)


def test_a_step_leaves_states_alone_until_rows_are_committed(target: HybridTarget) -> None:
    engine = batcher(target, NoDrafter(), SETTINGS["ragged"])
    runner = engine._runner
    assert isinstance(runner, BucketRunner)
    cache = runner.cache
    assert isinstance(cache, SlotHybridCache)
    for slot in (0, 2):
        cache.clear(slot)
    runner.prefill(Rows([3, 4, 5], range(3), (Segment(2, 0, 3),)), ())
    cache.commit(2, 3)
    before = [part.clone() for part in cache.states]
    rows = Rows([6, 7, 8, 9], [3, 4, 5, 0], (Segment(2, 3, 3), Segment(0, 0, 1)))
    first = runner.run(rows, ()).logits.clone()
    again = runner.run(rows, ()).logits.clone()  # nothing of the first was committed
    assert torch.equal(first, again)
    assert all(torch.equal(one, other) for one, other in zip(before, cache.states, strict=True))
    cache.commit(2, 2)
    runner.model.settle()
    moved = [(one != other).flatten(2).any(2) for one, other in zip(before, cache.states, strict=True)]
    for part in moved:
        assert part.any(0).tolist() == [slot == 2 for slot in range(SLOTS + 1)]


def test_what_was_committed_for_a_request_that_left_does_not_reach_the_next(target: HybridTarget) -> None:
    """Its slot is cleared before the replay."""
    cache = SlotHybridCache(target, 2, 32)
    spoil(cache)
    for slot in (0, 1):
        cache.ran(slot, 3 * slot)
        cache.commit(slot, 2)
    cache.clear(0)
    assert cache.take_waiting() == {1: (3, 0, range(2))}
    assert cache.take_waiting() == {}
    assert not any(part[:, 0].any() for part in cache.states)
    cache.ran(0, 5)
    cache.clear(0)
    cache.commit(0, 1)
    assert cache.take_waiting() == {}


def test_a_commit_that_the_host_was_not_told_of_moves_the_length_only(target: HybridTarget) -> None:
    cache = SlotHybridCache(target, 2, 32)
    cache.commit(1, 3)
    assert (cache.length(1), cache.take_waiting()) == (3, {})
    cache.ran(1, 0)
    cache.commit_path(1, [0, 2])
    assert (cache.length(1), cache.take_waiting()) == (5, {1: (0, 3, [0, 2])})


def test_the_bytes_are_those_that_are_allocated(target: HybridTarget) -> None:
    rows, positions = 70, 256
    made = open_slots(target, SLOTS, positions, rows=rows, most=DRAFTS + 1, graphs=Graphs(CPU))
    assert isinstance(made, HybridSlots)
    held = [*made.cache.states, *made.log, *made.cache.kv.places()]
    needed = slot_bytes(target, SLOTS, positions, rows)
    assert needed == sum(part.nbytes for part in held)
    states = made.cache.states.memories[0, 0].nbytes  # one for each row while a layer runs
    assert slot_bytes(target, SLOTS, positions, rows, trees=True) == needed + rows * states


def test_another_kind_of_target_is_refused() -> None:
    with pytest.raises(TargetError, match="dense and hybrid targets only"):
        open_slots(object(), 2, 32, rows=8, most=4, graphs=Graphs(CPU))  # type: ignore[arg-type]


def forgetful(states: SlotStates, log: DeltaLog, kept: KeptRows) -> None:
    delta.replay(states, log, kept._replace(counts=(kept.counts - 1).clamp_min(0)))


def of_the_neighbour(states: SlotStates, log: DeltaLog, kept: KeptRows) -> None:
    delta.replay(states, log, kept._replace(slots=kept.slots.flip(0)))


def from_an_empty_state(
    mixer: Any, inputs: Any, plan: Any, states: SlotStates, log: DeltaLog, layer: int
) -> torch.Tensor:
    nothing = SlotStates(*(torch.zeros_like(part) for part in states))
    return delta.recur(mixer, inputs, plan, nothing, log, layer)


BROKEN = {
    "one row too few is kept": TORCH_SLOT_DELTA._replace(replay=forgetful),
    "rows go to another slot": TORCH_SLOT_DELTA._replace(replay=of_the_neighbour),
    "the committed state is not read": TORCH_SLOT_DELTA._replace(recur=from_an_empty_state),
}


@pytest.mark.parametrize("led", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(
    target: HybridTarget, alone: dict[str, ANSWERS], name: str, led: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests."""
    monkeypatch.setattr(slot_hybrid, "slot_delta_kernels_for", lambda device, dtype: BROKEN[name])
    settings = BatchSettings(slots=2, buckets=True)
    engine: BatchEngine = batcher(target, NoDrafter(), settings)
    if led:
        engine = engine_on(lane_of(target, None, (), None), settings)
    todo = [MIXED[0], MIXED[4]]
    with pytest.raises(AssertionError, match=r"r[04]"):
        hold_same(todo, run(engine, todo, seed=5), alone["mixed"])


def test_what_is_needed_is_held_against_the_device_before_it_is_allocated(
    target: HybridTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(slot_hybrid, "hold_fit", lambda needed, *_: asked.append(needed))
    sizes: dict[str, Any] = {"rows": 80, "most": DRAFTS + 1, "graphs": Graphs(CPU)}
    open_slots(target, SLOTS, 256, **sizes)
    open_tree_slots(target, SLOTS, 256, levels=3, **sizes)
    assert asked == [slot_bytes(target, SLOTS, 256, 80, trees=trees) for trees in (False, True)]
