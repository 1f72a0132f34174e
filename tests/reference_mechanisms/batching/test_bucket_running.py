"""Batches in steps of fixed shape: each request gets what it would get alone, logits to the bit."""

from __future__ import annotations

import functools

import pytest
import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import BucketRunner, shapes_for
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.slot_step import Shape
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.errors import TargetError
from reference_mechanisms.request import Event
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
    DRAFTS,
    GREEDY,
    SAMPLED,
    SLOTS,
    Spoiling,
    decoded_alone,
    hold_same,
    kv_of,
    requests,
    run,
    spoil,
    text_of,
    tokens,
)
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

pytestmark = pytest.mark.skipif(
    not prepacks(torch.float32, CPU), reason="torch's own product rounds by the row count"
)
TODO = requests(11, (*GREEDY, *SAMPLED))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    return load_llama(write_model(tmp_path_factory.mktemp("buckets") / "target", "qwen3"), torch.float32, CPU)


@pytest.fixture(scope="module")
def alone(target: LlamaTarget) -> dict[str, list[Event]]:
    return decoded_alone(target, TODO)


def runner(target: Target, slots: int = SLOTS, costs: StepCosts | None = None) -> BucketRunner:
    shapes = shapes_for(slots, DRAFTS, costs)
    return BucketRunner(target, slots, CAPACITY, DRAFTS + 1, shapes, Graphs(CPU))


def batcher(
    target: Target, drafter: Drafter, settings: BatchSettings, costs: StepCosts | None = None
) -> tuple[Batcher, BucketRunner]:
    made = runner(target, settings.slots, costs)
    turns = Turns((), text_of, CAPACITY, VOCAB, Rules())
    return Batcher(made, turns, Drafts(drafter, DRAFTS), settings, costs), made


SETTINGS = {
    "ragged": BatchSettings(slots=SLOTS, buckets=True),
    "lockstep": BatchSettings(slots=SLOTS, buckets=True, ragged=False),
    "pieces of 5": BatchSettings(slots=SLOTS, buckets=True, prefill_rows=5),
    "all": BatchSettings(
        slots=SLOTS, buckets=True, budget=True, adaptive=True, cohorts=True, prefill_rows=70
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_request_gets_what_it_would_get_alone(
    target: LlamaTarget, alone: dict[str, list[Event]], name: str
) -> None:
    answers = {one: tokens(events) for one, events in alone.items()}
    costs = staircase(SLOTS, DRAFTS) if name == "all" else None
    engine, made = batcher(target, Spoiling(answers, seed=1), SETTINGS[name], costs)
    used: set[Shape] = set()
    chosen = made.bucket

    def bucket(requests: int, rows: int) -> Shape:
        found = chosen(requests, rows)
        used.add(found)
        return found

    made.bucket = bucket  # type: ignore[method-assign]
    spoil(made.cache)  # what another request has left, and what padding wrote
    found = run(engine, TODO, seed=2, leaving={"r1": 3, "r6": 2})
    assert hold_same(TODO, found, alone) >= 9
    assert len(used) > 3
    assert len({event.accepted for events in found.values() for event in events}) > 3


def test_autoregressive_too(target: LlamaTarget, alone: dict[str, list[Event]]) -> None:
    engine, _ = batcher(target, NoDrafter(), SETTINGS["ragged"])
    assert hold_same(TODO, run(engine, TODO, seed=5), alone) == len(TODO)


def test_padding_writes_nothing_that_a_request_reads(target: LlamaTarget) -> None:
    made = runner(target)
    spoil(made.cache)
    cache = kv_of(made.cache)
    before = [place.clone() for place in cache.places()]
    segments = (Segment(2, 9, 3), Segment(0, 4, 2))
    made.run(Rows([3, 4, 5, 6, 7], [9, 10, 11, 4, 5], segments), ())
    assert made.bucket(2, 5).rows > 5
    for old, new in zip(before, cache.places(), strict=True):
        changed = (old != new).any(-1).any(1)  # [slots, positions]
        expected = torch.zeros_like(changed)
        expected[2, 9:12] = expected[0, 4:6] = True
        assert torch.equal(changed[:SLOTS], expected[:SLOTS])


def test_a_row_hangs_on_no_other_and_on_no_shape(target: LlamaTarget) -> None:
    made = runner(target)
    ids = list(range(7))

    def logits(rows: Rows, at: slice) -> torch.Tensor:
        return made.run(rows, ()).logits[at].clone()

    expected = logits(Rows(ids, range(7), (Segment(1, 0, 7),)), slice(7))
    for shape in made.shapes:
        if shape.rows < 10 or shape.seats < 2:
            continue
        made.bucket = functools.partial(lambda shape, requests, rows: shape, shape)  # type: ignore[method-assign]
        packed = Rows([9, 8, 7, *ids], [0, 1, 2, *range(7)], (Segment(3, 0, 3), Segment(1, 0, 7)))
        assert torch.equal(logits(packed, slice(3, 10)), expected)


def test_what_cannot_be_done_is_refused(target: LlamaTarget) -> None:
    made = runner(target)
    with pytest.raises(ValueError, match="verify chains"):
        made.run(Rows([1, 2, 3], [0, 1, 1], (Segment(0, 0, 3),), [-1, 0, 0]), ())
    with pytest.raises(TargetError, match="no recorded shape holds 5 rows of 5 requests"):
        made.bucket(SLOTS + 1, SLOTS + 1)


def test_shapes_are_those_of_the_table_and_one_that_holds_everything() -> None:
    table = staircase(8, DRAFTS)
    found = shapes_for(SLOTS, DRAFTS, table)
    assert {one.seats for one in found} == {1, 2, 4}
    assert max(found).rows >= SLOTS * (1 + DRAFTS)
    told = {(one.requests, one.rows) for one in table.verify}
    assert all(tuple(one) in told or one.rows >= SLOTS * (1 + DRAFTS) for one in found)
