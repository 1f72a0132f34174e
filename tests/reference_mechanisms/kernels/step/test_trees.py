"""What a step of trees does beside its products: in torch and in Triton alike, and as on the host."""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor

from reference_mechanisms.kernels.step import trees
from reference_mechanisms.kernels.step.trees import Seeds, TreeKernels, TreeStand, TreeTurn, new_tree_turn
from reference_mechanisms.targets.rope import RopeScaling, rotation_table
from reference_mechanisms.verification.calibrating import Calibrated, Calibration, Line
from reference_mechanisms.verification.growing import Marginals, grow
from reference_mechanisms.verification.tree import ANCHOR, PADDING
from reference_mechanisms.verification.walking import greedy_walk

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step import (  # noqa: E402
    fused_candidates,
    fused_layer_attention,
    fused_trees,
)
from tests.exhaustive import slow_but  # noqa: E402
from tests.reference_mechanisms.kernels.step.test_fused import (  # noqa: E402
    BOTH,
    DIM,
    HEADS,
    KV,
    close,
    normal,
    products_row_by_row,
    stand_at,
)

__all__ = ["products_row_by_row"]  # a fixture

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
WAYS = {"torch": trees.TORCH_TREES, "triton": fused_trees.TREES}
VOCAB, LEVELS = 5000, 6  # more columns than one program takes
INTERPRETED = DEVICE.type == "cpu"  # where each turn of a kernel takes a hundred times as long


@pytest.fixture(params=list(WAYS))
def kernels(request: pytest.FixtureRequest) -> TreeKernels:
    return WAYS[request.param]


def random_parents(rng: random.Random, rows: int, nodes: int) -> list[int]:
    """Parent row of every row: a tree of up to `LEVELS` levels, and padding."""
    parents, depths = [ANCHOR], [0]
    while len(parents) < 1 + nodes:
        parent = rng.randrange(len(parents))
        if depths[parent] < LEVELS:
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return [*parents, *[PADDING] * (rows - len(parents))]


def turn_of(parents: list[int], tokens: list[int], *, start: int = 40, limit: int = 100) -> TreeTurn:
    turn = new_tree_turn(len(parents), LEVELS, DEVICE)
    drafted = sum(parent != PADDING for parent in parents) - 1
    turn.state.copy_(torch.tensor([*tokens, *parents, start, drafted, limit]))
    return turn


def path_of(parents: list[int], row: int) -> list[int]:
    found = [row]
    while parents[found[0]] >= 0:
        found.insert(0, parents[found[0]])
    return found


@pytest.mark.parametrize("rows", [2, 8, 24, 64])
def test_paths_and_depths(kernels: TreeKernels, rows: int) -> None:
    rng = random.Random(rows)  # noqa: S311 - test data
    for _ in range(5):
        parents = random_parents(rng, rows, rng.randrange(rows))
        turn = turn_of(parents, [0] * rows)
        kernels.lay(turn)
        for row, parent in enumerate(parents):
            path = [0, row] if parent == PADDING else path_of(parents, row)
            assert turn.depths[row] == len(path) - 1
            assert turn.paths[row].tolist() == [*path, *[row] * (LEVELS + 1 - len(path))]


def logits_of(choices: list[int], seed: int = 0) -> Tensor:
    made = normal(len(choices), VOCAB, seed=seed)
    made[range(len(choices)), choices] = 9.0
    return made.to(DEVICE)


@pytest.mark.parametrize("rows", [2, 8, 24, 64])
def test_the_walk_is_the_one_of_the_host(kernels: TreeKernels, rows: int) -> None:
    rng = random.Random(rows)  # noqa: S311 - test data
    accepted = set()
    rounds = (3 if rows < 64 else 1) if INTERPRETED and kernels is not trees.TORCH_TREES else 20
    for _ in range(rounds):
        nodes = rng.randrange(rows)
        parents = random_parents(rng, rows, nodes)
        choices = [rng.randrange(VOCAB) for _ in range(rows)]
        tokens = [17, *(choices[max(parent, 0)] + (rng.random() < 0.3) for parent in parents[1:])]
        turn = turn_of(parents, tokens)
        kernels.lay(turn)
        kernels.settle(logits_of(choices), turn)
        padded = torch.tensor([parents[1:]]) - 1
        walk = greedy_walk(torch.tensor([tokens[1:]]), padded, torch.tensor([choices]), LEVELS)
        count, path = int(walk.counts), walk.path[0].tolist()
        accepted.add(count)
        assert (turn.accepted.tolist(), turn.path.tolist()) == ([count], path)
        assert (turn.before.tolist(), turn.choices.tolist()) == ([40], choices)
        report = [40, nodes, count, *path, *tokens, *choices, *[1] * rows]
        assert turn.report.tolist() == report
        moved = [int(walk.bonus), *tokens[1:], *parents, 41 + count, nodes, 99 - count]
        assert turn.state.tolist() == moved
    assert len(accepted) > (min(rows, 3) - 1 if rounds > 3 else 0)


def test_logits_that_are_no_numbers_are_told(kernels: TreeKernels) -> None:
    turn = turn_of([ANCHOR, 0, 0, 1], [17, 3, 4, 5])
    kernels.lay(turn)
    logits = logits_of([9, 9, 9, 9])
    logits[2, 77] = torch.nan
    logits[3, 78] = torch.inf
    kernels.settle(logits, turn)
    assert turn.report[-4:].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_the_path_is_brought_together_in_every_layer(kernels: TreeKernels, dtype: torch.dtype) -> None:
    cache = normal(3, 2 * KV, 80, DIM).to(DEVICE, dtype)
    before = cache.clone()
    turn = new_tree_turn(16, LEVELS, DEVICE)
    turn.before.fill_(50)
    turn.path.copy_(torch.tensor([0, 2, 3, 9, 14, 14, 14]))
    kernels.move(cache.unbind(0), turn)
    assert torch.equal(cache[:, :, :51], before[:, :, :51])
    for index, row in enumerate([0, 2, 3, 9, 14, 14, 14]):
        assert torch.equal(cache[:, :, 50 + index], before[:, :, 50 + row])
    assert torch.equal(cache[:, :, 57:], before[:, :, 57:])


def scores(seed: int, *, ties: bool) -> Tensor:
    """Marginals of `LEVELS` positions; rounded to few values there are many of equal worth."""
    found = 2 * normal(LEVELS, 40, seed=seed)
    return found.round() if ties else found


@pytest.mark.parametrize("ties", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize("nodes", [1, 7, 31])
@pytest.mark.parametrize("calibrated", [False, True], ids=["raw", "calibrated"])
def test_the_planted_tree_is_the_grown_one(
    kernels: TreeKernels, nodes: int, ties: bool, calibrated: bool
) -> None:
    numbers = Calibration((Line(1.4, 0.2), Line(1.2, 0.3), Line(0.7, -0.1)), 0.3).numbers(
        LEVELS, torch.device("cpu")
    )
    for seed in range(1 if INTERPRETED and kernels is not trees.TORCH_TREES else 4):
        for limit in (0, 3, 100) if nodes > 7 and INTERPRETED else (0, 1, 3, 100):
            listed = Marginals(scores(seed, ties=ties)[None], torch.arange(40) + 100, nodes)
            ids, worth = (part[0].contiguous() for part in listed._best)
            off = torch.zeros(1, dtype=torch.float64)
            if calibrated:
                worth, off = numbers.worth(worth, slice(None)), numbers.off_spine[None]
            branching = Calibrated(listed, numbers) if calibrated else listed
            turn = turn_of([ANCHOR, *[5] * 31], [17] * 32, limit=limit)
            kernels.plant(Seeds(*(part.to(DEVICE) for part in (ids, worth, off))), nodes, turn)
            if limit == 0:
                assert turn.drafted.item() == 0
                assert turn.parents.tolist() == [ANCHOR, *[PADDING] * 31]
                continue
            depths = [min(limit, LEVELS)]
            grown = grow(branching, torch.tensor([17]), budget=nodes, depths=depths)
            count = int(grown.counts)
            assert turn.drafted.item() == count
            assert turn.ids[: 1 + count].tolist() == [17, *grown.token_ids[0, :count].tolist()]
            expected = [parent + 1 for parent in grown.parents[0, :count].tolist()]
            assert turn.parents.tolist() == [ANCHOR, *expected, *[PADDING] * (31 - count)]
            assert turn.start.item() == 40


COUNTS = [(dtype, count) for dtype in BOTH for count in (1, 5, 16, 40)]
PART = 128 if INTERPRETED else fused_candidates.PART
COLUMNS = 300 if INTERPRETED else VOCAB  # three programs for each row, the last with few columns


@pytest.mark.parametrize(("dtype", "count"), [*COUNTS[:2], *COUNTS[-2:]] if INTERPRETED else COUNTS, ids=str)
def test_candidates(
    kernels: TreeKernels, dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_candidates, "PART", PART)
    logits = (3 * normal(3, COLUMNS, seed=3)).to(dtype)
    logits[1] = (2 * normal(COLUMNS, seed=4)).round().to(dtype)  # many equal ones, negative ones too
    logits[2] = -logits[2].abs() - 100
    ids, worth = kernels.candidates(logits.to(DEVICE), count)
    order = logits.double().sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(ids.cpu(), order)
    expected = logits.double().log_softmax(-1).gather(1, order)
    torch.testing.assert_close(worth.cpu().double(), expected, rtol=2e-6, atol=2e-6)


def tree_stand(parents: list[int], start: int, cache: Tensor) -> TreeStand:
    turn = turn_of(parents, [0] * len(parents), start=start)
    trees.lay(turn)
    table = rotation_table(RopeScaling(10000.0), DIM, 200, cache.dtype).to(DEVICE)
    return TreeStand(turn.start, turn.depths, turn.paths, table, (cache,), 1e-5)


BREADTH = 8 if INTERPRETED else 14  # rows of a tree: several tiles
STARTS = (0, 3, 61, 64, 128, 150)
PLACES = [(dtype, norms, start) for dtype in BOTH for norms in (False, True) for start in STARTS]
SOME_PLACES = [PLACES[n] for n in (0, 4, 8, 15, 23)]


@pytest.mark.parametrize(
    ("dtype", "norms", "start"),
    slow_but([PLACES[n] for n in (4, 8, 15)], SOME_PLACES) if INTERPRETED else PLACES,
    ids=str,
)
def test_attention_of_a_tree(dtype: torch.dtype, norms: bool, start: int) -> None:
    parents = random_parents(random.Random(start), BREADTH, BREADTH - 2)  # noqa: S311 - test data
    first = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    caches = first.clone(), first.clone()
    qkv = normal(BREADTH, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype) if norms else None
    stands = [tree_stand(parents, start, cache) for cache in caches]
    ops = [way.ops(stand) for way, stand in zip(WAYS.values(), stands, strict=True)]
    close(*(one.attend(0, qkv.clone(), qk_norm) for one in ops[::-1]))
    close(caches[1], caches[0])
    untouched = [*range(start), *range(start + BREADTH, 200)]
    assert torch.equal(caches[1][:, untouched], first[:, untouched])


CHAINS = [(dtype, start) for dtype in BOTH for start in (61, 0, 128, 100)]
SOME_CHAINS = [CHAINS[0], CHAINS[2], CHAINS[-1]]
HELD = (0, 4, 7) if INTERPRETED else range(BREADTH)  # rows that are compared


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize(
    ("dtype", "start"), slow_but(SOME_CHAINS[::2], SOME_CHAINS) if INTERPRETED else CHAINS, ids=str
)
def test_every_row_is_bitwise_the_row_of_its_chain(dtype: torch.dtype, start: int) -> None:
    """Of the kernel for chains, that is: what `ar` runs through."""
    parents = random_parents(random.Random(start + 1), BREADTH, BREADTH - 1)  # noqa: S311 - test data
    first = normal(2 * KV, 200, DIM, seed=1).to(DEVICE, dtype)
    qkv = normal(BREADTH, HEADS + 2 * KV, DIM, seed=2).to(DEVICE, dtype)
    qk_norm = (1 + 0.1 * normal(HEADS + KV, DIM, seed=3)).to(DEVICE, dtype)
    cache = first.clone()
    found = fused_trees.FusedTreeOps(tree_stand(parents, start, cache)).attend(0, qkv, qk_norm)
    for row in HELD:
        path, chain = path_of(parents, row), first.clone()
        stand = stand_at(start, len(path), chain)
        alone = fused_layer_attention.attend_layer(qkv[path].contiguous(), qk_norm, stand, chain)
        assert torch.equal(alone[-1], found[row])
        assert torch.equal(chain[:, start + len(path) - 1], cache[:, start + row])


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter, of the row of padding
def test_what_a_row_does_not_see_is_not_read() -> None:
    parents = [ANCHOR, 0, 0, 1, 3, PADDING]
    cache = normal(2 * KV, 200, DIM, seed=1).to(DEVICE)
    qkv = normal(6, HEADS + 2 * KV, DIM, seed=2).to(DEVICE)
    clean = fused_trees.FusedTreeOps(tree_stand(parents, 90, cache.clone())).attend(0, qkv, None)
    cache[:, 90:] = torch.nan
    qkv[5] = torch.nan  # padding
    found = fused_trees.FusedTreeOps(tree_stand(parents, 90, cache)).attend(0, qkv, None)
    assert torch.equal(found[:5], clean[:5])


def test_a_path_longer_than_a_chunk_is_refused() -> None:
    stand = tree_stand([ANCHOR, 0], 3, normal(2 * KV, 200, DIM).to(DEVICE))
    long = stand._replace(paths=torch.zeros(2, 65, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match="paths of 65 rows; the kernel takes 64 at most"):
        fused_trees.FusedTreeOps(long).attend(0, normal(2, HEADS + 2 * KV, DIM).to(DEVICE), None)
