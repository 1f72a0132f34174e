from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_mechanisms.verification.tree import ANCHOR, PADDING
from reference_mechanisms.verification.walking import compact, greedy_walk
from tests.reference_mechanisms.verification.asking import Asking


def random_tree(rng: random.Random, nodes: int, vocab: int) -> tuple[list[int], list[int]]:
    """Token ids and parents; siblings are different tokens."""
    ids: list[int] = []
    parents: list[int] = []
    while len(ids) < nodes:
        parent, token = rng.randint(ANCHOR, len(ids) - 1), rng.randrange(vocab)
        if (parent, token) not in zip(parents, ids, strict=True):
            parents.append(parent)
            ids.append(token)
    return ids, parents


def walked(ids: list[int], parents: list[int], choices: list[int]) -> list[int]:
    """Rows from the anchor down, one by one on the host."""
    path = [0]
    while True:
        step = [n for n in range(len(ids)) if parents[n] + 1 == path[-1] and ids[n] == choices[path[-1]]]
        if not step:
            return path
        path.append(step[0] + 1)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), requests=st.integers(1, 4), vocab=st.integers(2, 6))
def test_the_walk_is_the_one_on_the_host(seed: int, requests: int, vocab: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - test data
    most = 10
    ids = torch.zeros(requests, most, dtype=torch.int64)
    parents = torch.full((requests, most), PADDING)
    choices = torch.tensor([[rng.randrange(vocab) for _ in range(1 + most)] for _ in range(requests)])
    expected = []
    for n in range(requests):
        tree = random_tree(rng, rng.randint(0, most), vocab)
        count = len(tree[0])
        ids[n, :count], parents[n, :count] = torch.tensor(tree[0]), torch.tensor(tree[1])
        ids[n, count:] = choices[n, 0]  # padding that would fit, were it a node
        expected.append(walked(*tree, choices[n].tolist()))
    found = greedy_walk(ids, parents, choices, levels=most)
    for n, path in enumerate(expected):
        assert found.path[n].tolist() == path + path[-1:] * (1 + most - len(path))
        assert found.counts[n] == len(path) - 1
        assert found.bonus[n] == choices[n, path[-1]]


def test_levels_bound_the_walk() -> None:
    ids, parents = torch.tensor([[1, 1, 1]]), torch.tensor([[-1, 0, 1]])
    found = greedy_walk(ids, parents, torch.ones(1, 4, dtype=torch.int64), levels=2)
    assert found.counts.tolist() == [2]
    assert found.path.tolist() == [[0, 1, 2]]


def test_a_tree_whose_first_level_is_wrong_gives_the_targets_own_token() -> None:
    found = greedy_walk(
        torch.tensor([[5, 6, 7]]), torch.tensor([[-1, 0, -1]]), torch.tensor([[9, 6, 1, 2]]), 2
    )
    assert (found.counts.tolist(), found.bonus.tolist()) == ([0], [9])


def test_the_walk_asks_the_device_nothing() -> None:
    ids, parents, choices = (torch.zeros(2, n, dtype=torch.int64) for n in (6, 6, 7))
    with Asking() as asking:
        greedy_walk(ids, parents - 1, choices, levels=3)
        compact(torch.zeros(2, 9, 4), choices[0], torch.arange(7))
    assert asking.seen == set()
    with Asking() as asking:
        assert not ids.tolist()[0][0]
        assert not ids[0, 0]
    assert asking.seen == {"tolist", "__bool__"}  # and would be seen


@pytest.mark.parametrize("sources", [[4, 5, 7], [4, 6, 9], [7, 6, 5], [4, 4, 4]])
def test_compaction_reads_everything_before_it_writes(sources: list[int]) -> None:
    place = torch.randn(2, 3, 10, 4)
    before = place.clone()
    compact(place, torch.tensor(sources), torch.tensor([4, 5, 6]))
    assert torch.equal(place[..., 4:7, :], before[..., sources, :])
    assert torch.equal(place[..., :4, :], before[..., :4, :])
    assert torch.equal(place[..., 7:, :], before[..., 7:, :])
