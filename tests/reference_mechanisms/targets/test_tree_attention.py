"""Rows of a tree are bitwise the rows of the chains it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import KEY_BUCKET, LlamaTarget, load_llama
from reference_mechanisms.verification.tree import depths_of
from tests.exhaustive import slow_but
from tests.reference_mechanisms.targets.models import (
    CPU,
    VOCAB,
    fill_with_garbage,
    random_ids,
    run,
    write_model,
)
from tests.reference_mechanisms.targets.test_row_invariance import SMOLLM2

START = KEY_BUCKET - 3  # some paths go over the end of a key bucket
PREFIX = random_ids(START)
#       anchor
#   0      1     2
# 3  4     5        A chain of seven behind node 3, with a sibling at its end.
PARENTS = (-1, -1, -1, 0, 0, 1, 3, 6, 7, 8, 9, 9)
TOKENS = (5, 6, 7, 5, 8, 9, 10, 11, 12, 13, 14, 15)
SLOTS = 3


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> LlamaTarget:
    if not prepacks(request.param, CPU):
        pytest.skip(f"no prepacked product for {request.param} here: torch's own rounds by the row count")
    folder: Path = write_model(tmp_path_factory.mktemp("model"), **SMOLLM2)
    return load_llama(folder, request.param, CPU)


@pytest.fixture
def cache(target: LlamaTarget) -> KVCache:
    made = target.new_cache(SLOTS, START + 40)
    fill_with_garbage(made, seed=1, scale=30.0)
    for slot in range(SLOTS):
        run(target, made, (slot, 0, PREFIX))
        made.commit(slot, START)
    return made


def tree_rows(*slots: int, tokens: tuple[int, ...] = TOKENS) -> Rows:
    count = 1 + len(tokens)
    depths = [0, *depths_of(PARENTS)]
    return Rows(
        [token for _ in slots for token in (3, *tokens)],
        [START + depth for _ in slots for depth in depths],
        [Segment(slot, START, count) for slot in slots],
        [parent for _ in slots for parent in (-1, *(one + 1 for one in PARENTS))],
    )


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


def as_chains(target: LlamaTarget, cache: KVCache) -> Tensor:
    """Logits of every row, each at the end of its own path run as a chain."""
    paths = [[3, *(TOKENS[one] for one in path_to(node))] for node in range(-1, len(TOKENS))]
    return torch.stack([run(target, cache, (0, START, path))[-1] for path in paths])


def logits(target: LlamaTarget, cache: KVCache, rows: Rows) -> Tensor:
    return target.logits(target.forward(rows, cache).hidden)


def test_a_row_is_the_last_one_of_its_path(target: LlamaTarget, cache: KVCache, threads: int) -> None:
    chains = as_chains(target, cache)
    assert torch.equal(logits(target, cache, tree_rows(0)), chains)
    together = logits(target, cache, tree_rows(2, 0, 1))
    assert all(torch.equal(mine, chains) for mine in together.chunk(3))


def test_a_node_changes_its_descendants_alone(target: LlamaTarget, cache: KVCache) -> None:
    before = logits(target, cache, tree_rows(0))
    for node in range(len(TOKENS)):
        changed = (*TOKENS[:node], (TOKENS[node] + 20) % VOCAB, *TOKENS[node + 1 :])
        after = logits(target, cache, tree_rows(0, tokens=changed))
        moved = {row - 1 for row in range(1 + len(TOKENS)) if not torch.equal(before[row], after[row])}
        assert moved == {one for one in range(len(TOKENS)) if node in path_to(one)}


@pytest.mark.parametrize("node", slow_but((-1, 0, 3, 6, 8, len(TOKENS) - 1), range(-1, len(TOKENS))))
def test_a_committed_path_leaves_the_cache_of_its_chain(
    target: LlamaTarget, cache: KVCache, node: int
) -> None:
    path = [0, *(one + 1 for one in path_to(node))]
    logits(target, cache, tree_rows(0))
    cache.commit_path(0, path)
    run(target, cache, (1, START, [3, *(TOKENS[one] for one in path_to(node))]))
    cache.commit(1, len(path))
    for one, other in zip(
        cache.window(0, 0, cache.length(0)), cache.window(1, 0, cache.length(1)), strict=True
    ):
        assert torch.equal(one, other)
    following = random_ids(4, seed=8)
    assert torch.equal(
        run(target, cache, (0, cache.length(0), following)),
        run(target, cache, (1, cache.length(1), following)),
    )


def test_rows_without_parents_are_those_of_a_chain_of_parents(target: LlamaTarget, cache: KVCache) -> None:
    ids = (3, *TOKENS)
    rows = Rows(ids, range(START, START + len(ids)), [Segment(0, START, len(ids))])
    with_parents = rows._replace(parents=range(-1, len(TOKENS)))
    assert torch.equal(logits(target, cache, rows), logits(target, cache, with_parents))


@pytest.mark.parametrize("parents", [(-1, -1), (-1, 1), (0, 0), (-1, -2)])
def test_rows_that_are_no_tree_are_refused(
    target: LlamaTarget, cache: KVCache, parents: tuple[int, ...]
) -> None:
    rows = Rows((3, 4), (START, START + 1), [Segment(0, START, 2)], parents)
    with pytest.raises(ValueError, match="follow one first row"):
        target.forward(rows, cache)
