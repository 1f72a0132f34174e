"""Trees of rows on a whole hybrid target: a path of a tree is bitwise the chain that it is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.targets.llama import KEY_BUCKET
from tests.reference_mechanisms.targets.hybrids import in_pieces, same, states, verified, write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids

RECURRENT = 3  # layers
ROOM = KEY_BUCKET + 60
COMB = (-1, 0, 0, 1, 1, 3, 3, 5)
WIDE = (-1, 0, 0, 0, 1, 1, 2, 4, 6, 7)
LATE = (-1, 0, 1, 2, 0, 4, 5, 6, 7)  # the path that counts comes second


@pytest.fixture(scope="module", params=["qwen3_next", "qwen3_5"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HybridTarget:
    return load_hybrid(write_hybrid(tmp_path_factory.mktemp("hybrid"), request.param), torch.float32, CPU)


def depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def path_to(parents: Sequence[int], row: int) -> list[int]:
    found = [row]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found[::-1]


def tree(cache: HybridCache, ids: Sequence[int], parents: Sequence[int]) -> Rows:
    start = cache.length(0)
    positions = [start + depth for depth in depths(parents)]
    return Rows(ids, positions, (Segment(0, start, len(ids)),), parents)


def run(target: HybridTarget, cache: HybridCache, ids: Sequence[int], parents: Sequence[int]) -> Tensor:
    return target.logits(target.forward(tree(cache, ids, parents), cache).hidden)


def begun(target: HybridTarget, prompt: Sequence[int]) -> HybridCache:
    cache = target.new_cache(1, ROOM)
    in_pieces(target, cache, prompt, [len(prompt)])
    return cache


@pytest.mark.parametrize("length", [9, KEY_BUCKET - 3], ids=["short", "over the end of a key bucket"])
@pytest.mark.parametrize("parents", [COMB, WIDE, LATE], ids=["comb", "wide", "late"])
def test_every_path_is_the_chain_that_it_is_and_can_be_committed(
    target: HybridTarget, parents: tuple[int, ...], length: int
) -> None:
    prompt, ids = random_ids(length, seed=2), random_ids(len(parents), seed=3)
    follow = random_ids(4, seed=4)
    leaves = [row for row in range(len(parents)) if row not in parents]
    for row in leaves if length < KEY_BUCKET - 3 else leaves[-1:]:
        path = path_to(parents, row)
        cache, plain = begun(target, prompt), begun(target, prompt)
        before = states(cache, RECURRENT)
        found = run(target, cache, ids, parents)
        assert same(states(cache, RECURRENT), before)
        wanted = verified(target, plain, [ids[one] for one in path])
        assert torch.equal(found[path], wanted)
        cache.commit_path(0, path)
        plain.commit(0, len(path))
        assert cache.length(0) == plain.length(0)
        assert same(states(cache, RECURRENT), states(plain, RECURRENT))
        assert torch.equal(verified(target, cache, follow), verified(target, plain, follow))


def test_random_trees_one_behind_the_other(target: HybridTarget) -> None:
    rng = random.Random(7)  # noqa: S311 - test data
    prompt = random_ids(5)
    cache, plain = begun(target, prompt), begun(target, prompt)
    for _ in range(8):
        parents = [-1, *(rng.randrange(row) for row in range(1, rng.randint(1, 12)))]
        ids = [rng.randrange(VOCAB) for _ in parents]
        path = path_to(parents, rng.randrange(len(parents)))
        found = run(target, cache, ids, parents)
        steps = []
        for row in path:
            steps.append(verified(target, plain, [ids[row]]))
            plain.commit(0, 1)
        assert torch.equal(found[path], torch.cat(steps))
        cache.commit_path(0, path)
        assert same(states(cache, RECURRENT), states(plain, RECURRENT))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((0, 3), "row 3 does not follow row 0"),
        ((1, 3), "row 1 does not follow row -1"),
        ((0, 1, 4, 4), "row 4 does not follow row 4"),
        ((0, 9), "row 9 does not follow row 0"),
    ],
)
def test_rows_that_are_no_path_cannot_be_committed(
    target: HybridTarget, path: tuple[int, ...], message: str
) -> None:
    cache = begun(target, random_ids(5))
    run(target, cache, random_ids(len(COMB)), COMB)
    with pytest.raises(ValueError, match=f"slot 0: {message}"):
        cache.commit_path(0, path)
    cache.commit_path(0, (0, 1))
    assert cache.length(0) == 7


def test_a_tree_cannot_be_committed_as_a_chain(target: HybridTarget) -> None:
    cache = begun(target, random_ids(5))
    run(target, cache, random_ids(len(COMB)), COMB)
    with pytest.raises(ValueError, match="row 2 does not follow row 1"):
        cache.commit(0, 3)
