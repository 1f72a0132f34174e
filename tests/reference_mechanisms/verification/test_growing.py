from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference_mechanisms.verification.growing import Children, Grown, Marginals, grow, trees_of
from reference_mechanisms.verification.tree import ANCHOR, PADDING, DraftTree
from tests.reference_mechanisms.verification.asking import Asking
from tests.reference_mechanisms.verification.branchings import Path, PathTable, every_path, random_table

ANCHORS = torch.tensor([3, 4])


def paths(tree: DraftTree) -> list[Path]:
    return [tuple(tree.token_ids[one] for one in tree.path(node)) for node in range(len(tree))]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 4),
    depth=st.integers(1, 3),
    budget=st.integers(1, 20),
    ties=st.booleans(),
)
def test_the_tree_holds_the_most_probable_paths_of_all(
    seed: int, vocab: int, depth: int, budget: int, ties: bool
) -> None:
    table = random_table(seed, vocab, grid=1 if ties else 0)
    grown = grow(PathTable(table, min(vocab, budget)), ANCHORS, budget=budget, depths=(depth, depth))
    for request, tree in enumerate(trees_of(grown)):
        every = every_path(table, request, vocab, depth)
        best = sorted(every.values(), reverse=True)[:budget]
        assert tree.path_log_probabilities == pytest.approx(best, abs=1e-12)
        assert [every[path] for path in paths(tree)] == pytest.approx(best, abs=1e-12)
        assert len(set(paths(tree))) == len(tree) == min(budget, len(every))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ties=st.booleans(), width=st.sampled_from([None, 3]))
def test_a_smaller_budget_is_the_beginning_of_a_larger_one(seed: int, ties: bool, width: int | None) -> None:
    def made(budget: int) -> list[DraftTree]:
        branching = PathTable(random_table(seed, 4, grid=2 if ties else 0), 4)
        return trees_of(grow(branching, ANCHORS, budget=budget, depths=(3, 2), width=width))

    largest = made(24)
    for budget in range(1, 24):
        assert made(budget) == [tree.first(budget) for tree in largest]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ties=st.booleans())
def test_probabilities_do_not_rise_and_parents_come_first(seed: int, ties: bool) -> None:
    grown = grow(
        PathTable(random_table(seed, 4, grid=1 if ties else 0), 4), ANCHORS, budget=30, depths=(3, 3)
    )
    assert bool((grown.path_log_probabilities.diff(dim=1) <= 0).all())
    for row in grown.parents.tolist():
        assert all(parent < node for node, parent in enumerate(row))


def test_ties_go_to_the_shallower_node_then_the_earlier_parent_then_the_child_named_first() -> None:
    even = torch.full((2,), 0.5, dtype=torch.float64).log()
    certain = torch.tensor([0.0, -math.inf], dtype=torch.float64)
    tree = trees_of(grow(PathTable(lambda _, path: even, 2), ANCHORS, budget=6, depths=(2, 2)))[0]
    assert paths(tree) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    chain = trees_of(grow(PathTable(lambda _, path: certain, 2), ANCHORS, budget=5, depths=(3, 3)))[0]
    assert paths(chain) == [(0,), (0, 0), (0, 0, 0)]  # impossible paths are no nodes


def test_each_request_keeps_its_own_depth_and_the_rest_is_padding() -> None:
    grown = grow(PathTable(random_table(1, 3), 3), ANCHORS, budget=9, depths=(1, 3))
    shallow, deep = trees_of(grown)
    assert set(shallow.depths) == {1}
    assert max(deep.depths) == 3
    assert grown.counts.tolist() == [3, 9]
    assert set(grown.parents[0, 3:].tolist()) == {PADDING}
    none = grow(PathTable(random_table(1, 3), 3), ANCHORS, budget=9, depths=(0, 3))
    assert [len(tree) for tree in trees_of(none)] == [0, 9]


def test_a_beam_asks_for_the_children_of_so_many_nodes_of_a_level() -> None:
    branching = PathTable(random_table(5, 4), 4)
    grow(branching, ANCHORS, budget=12, depths=(3, 3), width=2)
    assert branching.asked == [1, 2, 2]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 30))
def test_marginals_give_the_most_probable_products(seed: int, budget: int) -> None:
    made = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 4, generator=made)
    ids = torch.tensor([7, 2, 9, 4])
    grown = grow(Marginals(logits, ids, min(budget, 4)), ANCHORS, budget=budget, depths=(3, 3))
    logs = logits.double().log_softmax(-1)
    for request, tree in enumerate(trees_of(grown)):
        every = sorted(
            (
                sum(float(logs[request, depth, one]) for depth, one in enumerate(path))
                for length in (1, 2, 3)
                for path in itertools.product(range(4), repeat=length)
            ),
            reverse=True,
        )
        assert tree.path_log_probabilities == pytest.approx(every[:budget], abs=1e-5)
        assert set(tree.token_ids) <= {7, 2, 9, 4}


def test_growing_asks_the_device_nothing() -> None:
    with Asking() as asking:
        grow(Marginals(torch.randn(2, 3, 8), torch.arange(8), 8), ANCHORS, budget=12, depths=(3, 2))
    assert asking.seen == set()


def test_logits_that_are_no_numbers_draft_nothing() -> None:
    grown = grow(
        Marginals(torch.full((1, 2, 3), torch.nan), torch.arange(3), 3), ANCHORS[:1], budget=4, depths=(2,)
    )
    assert [len(tree) for tree in trees_of(grown)] == [0]


def test_a_probability_that_rounds_above_1_is_no_better_than_its_parent() -> None:
    class Rounded:
        def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
            return Children(torch.zeros(1, 1, 1, dtype=torch.int64), torch.full((1, 1, 1), 1e-7))

    grown: Grown = grow(Rounded(), ANCHORS[:1], budget=3, depths=(3,))
    assert trees_of(grown)[0].parents == (ANCHOR, 0, 1)


@pytest.mark.parametrize(("budget", "depths"), [(0, (3,)), (4, (0,))])
def test_nothing_to_draft_is_refused(budget: int, depths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        grow(PathTable(random_table(1, 3), 3), ANCHORS[:1], budget=budget, depths=depths)
