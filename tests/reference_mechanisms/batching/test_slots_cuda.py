"""Batches in CUDA graphs: ids and logits bitwise those of each request alone, without drafts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bench.replaying import Known, ReplayedSlots
from reference_mechanisms.batching.bucket_running import BucketRunner, by_size, shapes_for
from reference_mechanisms.batching.driven import DrivenBatcher
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import Attempt, Trace
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.slot_drafting import slot_program
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.slot_lane import LaneSizes, SlotLane
from reference_mechanisms.engine.slot_step import Shape
from reference_mechanisms.engine.slots import open_slots
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.request import Event, Request
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.loading import load_target
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
    DRAFTS,
    GREEDY,
    SAMPLED,
    SLOTS,
    Spoiling,
    hold_same,
    requests,
    run,
    spoil,
    text_of,
    tokens,
)
from tests.reference_mechanisms.engine.test_static_steps import WIDTH
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import VOCAB, write_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
MOST = DRAFTS + 1
# One shape of steps: libraries round by the shape where the streaming kernels do not run.
ONE_SHAPE = (Shape(SLOTS, SLOTS * MOST),)
SETTINGS = BatchSettings(slots=SLOTS, buckets=True, prefill_rows=70)
MIXED = requests(8, (*GREEDY, *SAMPLED))
PLAIN = requests(8, GREEDY, capture=False)
ANSWERS = dict[str, list[Event]]


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("slots") / "target"
    if request.param == "dense":
        return write_model(at, head_dim=32)  # as the Triton kernels take it
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "full_attention_interval": 2,
        "head_dim": 32,
    }
    return write_hybrid(at, "qwen3_5", initializer_range=0.2, **sizes)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def on_gpu(request: pytest.FixtureRequest, folder: Path) -> Target:
    return load_target(folder, request.param, CUDA)


def runner(target: Target, *, records: bool = True) -> BucketRunner:
    made = BucketRunner(target, SLOTS, CAPACITY, MOST, ONE_SHAPE, Graphs(CUDA, records=records))
    spoil(made.cache)
    return made


def turns() -> Turns:
    return Turns((), text_of, CAPACITY, VOCAB, Rules())


def batcher(made: BucketRunner, drafter: Drafter) -> Batcher:
    return Batcher(made, turns(), Drafts(drafter, DRAFTS), SETTINGS)


def one_by_one(made: BucketRunner, todo: list[Request]) -> ANSWERS:
    """Each request by itself, without drafts."""
    found: ANSWERS = {}
    for one in todo:
        found |= run(batcher(made, NoDrafter()), [one], seed=1)
    return found


@pytest.fixture(scope="module")
def alone(on_gpu: Target) -> ANSWERS:
    made = runner(on_gpu)
    return one_by_one(made, MIXED) | {f"{n} plain": e for n, e in one_by_one(made, PLAIN).items()}


def plain(alone: ANSWERS) -> ANSWERS:
    return {one.name: alone[f"{one.name} plain"] for one in PLAIN}


class Nothing:
    """A program that drafts nothing of its own."""

    drafts = DRAFTS

    def absorb(self, *_: object) -> None:
        """Take nothing in."""

    def draft(self, *_: object) -> None:
        """Draft nothing."""


def lane_of(target: Target, program: object, taps: tuple[int, ...]) -> SlotLane:
    graphs, shapes = Graphs(target.device), by_size(ONE_SHAPE)
    slots = open_slots(target, SLOTS, CAPACITY + MOST, rows=shapes[-1].rows, most=MOST, graphs=graphs)
    spoil(slots.cache)
    return SlotLane(slots, sizes=LaneSizes(shapes, MOST), taps=taps, program=program, graphs=graphs)  # type: ignore[arg-type]


def test_recording_changes_nothing(on_gpu: Target, alone: ANSWERS) -> None:
    bare = runner(on_gpu, records=False)
    assert hold_same(MIXED, one_by_one(bare, MIXED), alone) == len(MIXED)


def test_drafts_of_the_host_change_nothing(on_gpu: Target, alone: ANSWERS) -> None:
    made = runner(on_gpu)
    for seed in (2, 3):
        drafter = Spoiling({one.name: tokens(alone[one.name]) for one in MIXED}, seed)
        found = run(batcher(made, drafter), MIXED, seed, leaving={"r1": 3, "r6": 2})
        assert hold_same(MIXED, found, alone) >= len(MIXED) - 2
        assert len({event.accepted for events in found.values() for event in events}) > 3


@pytest.mark.parametrize("which", ["mixed", "plain"])
def test_nor_do_those_that_the_device_makes_ahead(on_gpu: Target, alone: ANSWERS, which: str) -> None:
    """Right ones up to where a number on the device says."""
    todo, expected = (MIXED, alone) if which == "mixed" else (PLAIN, plain(alone))
    replayed = ReplayedSlots(Nothing(), SLOTS, CAPACITY, VOCAB, CUDA)  # type: ignore[arg-type]
    lane, rng = lane_of(on_gpu, replayed, ()), random.Random(5)  # noqa: S311 - test data

    def joined(slot: int, request: Request) -> None:
        ids = tokens(expected[request.name])
        attempts = tuple(Attempt(rng.randrange(DRAFTS + 1), (0.5,) * DRAFTS) for _ in ids)
        trace = Trace(prompt=len(request.prompt), tokens=len(ids), attempts=attempts)
        replayed.begin(slot, request, Known(ids, trace))

    for seed, leaving in ((2, {"r1": 2, "r6": 2}), (8, {})):
        engine = DrivenBatcher(lane, turns(), SETTINGS, joined=joined)
        found = run(engine, todo, seed, leaving=leaving)
        assert hold_same(todo, found, expected) >= len(todo) - len(leaving)
        assert len({event.accepted for events in found.values() for event in events}) > 4


@pytest.mark.parametrize("name", NETWORKS)
def test_nor_does_a_drafter_with_weights(on_gpu: Target, alone: ANSWERS, name: str) -> None:
    bound = bind(NETWORKS[name]().to(CUDA, on_gpu.dtype), on_gpu, "drafter")
    lane = lane_of(on_gpu, slot_program(bound, 4, SLOTS, CAPACITY + DRAFTS), bound.taps)
    found = run(DrivenBatcher(lane, turns(), SETTINGS), PLAIN, 4)
    assert hold_same(PLAIN, found, plain(alone)) == len(PLAIN)


def test_trees_change_nothing(on_gpu: Target, alone: ANSWERS) -> None:
    """The rows of a tree beside the chains of `alone`: other kernels, the same bits."""
    known = {one.prompt: tokens(alone[one.name]) for one in MIXED}
    for records in (True, False):
        made = BucketRunner(
            on_gpu, SLOTS, CAPACITY, MOST, ONE_SHAPE, Graphs(CUDA, records=records), levels=DRAFTS
        )
        drafts = Drafts(RandomTrees(known, VOCAB, 3, DRAFTS), DRAFTS, tree=True)
        found = run(Batcher(made, turns(), drafts, SETTINGS), MIXED, seed=6)
        assert hold_same(MIXED, found, alone) == len(MIXED)
        assert len({event.accepted for events in found.values() for event in events}) > 3


def test_shapes_change_nothing_where_products_round_rows_alike(on_gpu: Target, alone: ANSWERS) -> None:
    assert isinstance(on_gpu, LlamaTarget | HybridTarget)
    if not on_gpu.rows_round_alike:
        pytest.skip("products of this target round by the shape")
    made = BucketRunner(on_gpu, SLOTS, CAPACITY, MOST, shapes_for(SLOTS, DRAFTS, None), Graphs(CUDA))
    assert len(made.shapes) > 3
    drafter = Spoiling({one.name: tokens(alone[one.name]) for one in MIXED}, seed=4)
    assert hold_same(MIXED, run(batcher(made, drafter), MIXED, seed=7), alone) == len(MIXED)
