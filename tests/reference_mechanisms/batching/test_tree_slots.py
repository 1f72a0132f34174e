"""Batches of trees in steps of fixed shape: the bits of one-token steps of each request alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bucket_running import BucketRunner, shapes_for
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine import slot_hybrid, slot_tree
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.slot_tree import SlotPathCache
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.kernels.slots import delta, trees
from reference_mechanisms.kernels.slots.trees import TORCH_SLOT_TREES, Moved, SlotTreeStand
from reference_mechanisms.kernels.step import delta as step_delta
from reference_mechanisms.request import Event
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.layer_ops import TorchOps
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.loading import load_target
from tests.exhaustive import slow_but
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
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
from tests.reference_mechanisms.engine.test_static_steps import WIDTH
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

pytestmark = pytest.mark.skipif(
    not prepacks(torch.float32, CPU), reason="torch's own product rounds by the row count"
)
NODES, LEVELS = 9, 6
TODO = requests(8, (*GREEDY, *SAMPLED))
ANSWERS = dict[str, list[Event]]


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("trees") / "target"
    if request.param == "dense":
        return load_target(write_model(folder, "qwen3"), torch.float32, CPU)
    request.getfixturevalue("short_pieces")
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 3, "full_attention_interval": 2}
    return load_target(write_hybrid(folder, "qwen3_5", initializer_range=0.2, **sizes), torch.float32, CPU)


@pytest.fixture(scope="module")
def alone(target: Target) -> ANSWERS:
    return decoded_alone(target, TODO)


def runner(target: Target, slots: int = SLOTS, costs: StepCosts | None = None) -> BucketRunner:
    shapes = shapes_for(slots, NODES, costs)
    made = BucketRunner(target, slots, CAPACITY, NODES + 1, shapes, Graphs(CPU), LEVELS)
    spoil(made.cache)
    return made


def batcher(
    target: Target, drafts: Drafts, settings: BatchSettings, costs: StepCosts | None = None
) -> Batcher:
    turns = Turns((), text_of, CAPACITY, VOCAB, Rules())
    return Batcher(runner(target, settings.slots, costs), turns, drafts, settings, costs)


def random_trees(alone: Mapping[str, list[Event]], seed: int) -> Drafts:
    known = {one.prompt: tokens(alone[one.name]) for one in TODO}
    return Drafts(RandomTrees(known, VOCAB, seed, NODES), NODES, tree=True)


SETTINGS = {
    "ragged": BatchSettings(slots=SLOTS, buckets=True),
    "cohorts, pieces of 5": BatchSettings(slots=SLOTS, buckets=True, cohorts=True, prefill_rows=5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_request_gets_what_it_would_get_alone(target: Target, alone: ANSWERS, name: str) -> None:
    """Trees that are right and wrong at random places, at random arrivals and leavings."""
    engine = batcher(target, random_trees(alone, 1), SETTINGS[name])
    found = run(engine, TODO, seed=2, leaving={"r1": 3, "r6": 2})
    assert hold_same(TODO, found, alone) >= 6
    events = [event for one in found.values() for event in one]
    assert len({event.accepted for event in events}) > 3
    assert max(event.drafted for event in events) == NODES


@pytest.mark.parametrize("name", slow_but(["eagle3"], ["dflash", "dspark", "eagle3"]))
def test_nodes_shared_over_requests_leave_the_output_alone(target: Target, alone: ANSWERS, name: str) -> None:
    """One budget of all trees, by the costs of recorded shapes; the best nodes of all are verified."""
    bound, ration = bind(NETWORKS[name]().float(), target, "drafter"), Ration()
    drafting = Drafting(drafts=4, tree=NODES, nodes=ration.nodes)
    settings = BatchSettings(slots=SLOTS, buckets=True, tree_budget=True, adaptive=True, prefill_rows=70)
    drafts = Drafts(bound.new_drafter(drafting), NODES, ration, tree=True)
    engine = batcher(target, drafts, settings, staircase(SLOTS, NODES, row=0.02))
    for one in TODO:
        engine.submit(one)
    found: ANSWERS = {one.name: [] for one in TODO}
    budgets, drafted = [], []
    while engine.busy:
        outcomes = dict(engine.step())
        for name_of, event in outcomes.items():
            assert isinstance(event, Event)
            found[name_of].append(event)
        if engine.planned is not None and engine.planned.budget is not None:
            budgets.append(engine.planned.budget)
            drafted.append(sum(event.drafted for event in outcomes.values() if isinstance(event, Event)))
            assert drafted[-1] <= budgets[-1]
    assert hold_same(TODO, found, alone) == len(TODO)
    assert max(drafted) > NODES  # of more than one request
    assert len(set(budgets)) > 1


def test_chains_and_steps_without_drafts_go_the_same_way(target: Target, alone: ANSWERS) -> None:
    engine = batcher(target, Drafts(NoDrafter(), NODES), SETTINGS["ragged"])
    assert hold_same(TODO, run(engine, TODO, seed=5), alone) == len(TODO)
    made = runner(target)
    rows = Rows([5, 6, 7, 8], range(4), (Segment(1, 0, 4),))
    chain = made.run(rows, ()).logits.clone()
    branches = Rows([5, 9, 6, 7, 8], [0, 1, 1, 2, 3], (Segment(1, 0, 5),), [-1, 0, 0, 2, 3])
    assert torch.equal(made.run(branches, ()).logits[[0, 2, 3, 4]], chain)


def test_paths_that_were_accepted_come_together_before_anything_else_runs() -> None:
    class Lengths:
        slots, capacity = 3, 64

        def __init__(self) -> None:
            self.lengths = [10, 20, 30]

        def length(self, slot: int) -> int:
            return self.lengths[slot]

        def commit(self, slot: int, kept: int) -> None:
            self.lengths[slot] += kept

        def clear(self, slot: int) -> None:
            self.lengths[slot] = 0

    cache = SlotPathCache(Lengths())  # type: ignore[arg-type]
    cache.commit_path(0, [0, 1, 2])  # together already
    cache.commit_path(1, [0, 2])
    cache.commit_path(2, [0, 1, 4])
    cache.clear(2)  # its request has left
    cache.commit(0, 1)
    assert [cache.length(slot) for slot in range(3)] == [14, 22, 0]
    assert cache.take_waiting() == {1: (20, [0, 2])}
    assert cache.take_waiting() == {}


def test_what_a_step_cannot_hold_is_refused(target: Target) -> None:
    made = runner(target)
    deep = Rows(range(LEVELS + 2), range(LEVELS + 2), (Segment(0, 0, LEVELS + 2),))
    with pytest.raises(ValueError, match=f"a tree of {LEVELS + 1} levels in steps of {LEVELS}"):
        made.run(deep, ())


def unmoved(places: object, moved: Moved) -> None:
    """Leave the rows of an accepted path where they lie."""


def by_place(stand: SlotTreeStand) -> TorchOps:
    """Each row sees those before it, its ancestors or not."""
    laid = stand.trees
    own = laid.paths.new_tensor(range(laid.paths.shape[1])).expand_as(laid.paths)
    return trees.tree_ops(stand._replace(trees=laid._replace(paths=own.contiguous())))


BROKEN = {
    "paths stay apart": TORCH_SLOT_TREES._replace(move=unmoved),
    "a row sees what lies before it": TORCH_SLOT_TREES._replace(ops=by_place),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(
    target: Target, alone: ANSWERS, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests."""
    for module in (slot_tree, slot_hybrid):
        monkeypatch.setattr(module, "slot_tree_kernels_for", lambda *_: BROKEN[name])
    engine = batcher(target, random_trees(alone, 1), SETTINGS["ragged"])
    with pytest.raises(AssertionError, match=r"r\d"):
        hold_same(TODO, run(engine, TODO, seed=2), alone)


def on_the_row_before(packed: Any, trees: Any, kernel: int, most: int) -> Any:
    """Each row of a tree runs from the one before it, its parent or not."""
    del trees
    return delta.chain_plan(packed, step_delta.chain_plan(most, kernel, CPU).windows)


def test_recurrent_rows_of_a_wrong_parent_are_seen(
    target: Target, alone: ANSWERS, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(target, HybridTarget):
        pytest.skip("no recurrent layers")
    monkeypatch.setattr(slot_hybrid, "tree_plan", on_the_row_before)
    engine = batcher(target, random_trees(alone, 1), SETTINGS["ragged"])
    with pytest.raises(AssertionError, match=r"r\d"):
        hold_same(TODO, run(engine, TODO, seed=2), alone)
