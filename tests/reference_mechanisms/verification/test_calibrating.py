from __future__ import annotations

import random

import pytest
import torch

from reference_mechanisms.verification.calibrating import (
    MISSED,
    Calibrated,
    Calibration,
    calibrate,
    expected_tokens,
)
from reference_mechanisms.verification.growing import grow, trees_of
from tests.reference_mechanisms.verification.branchings import PathTable, random_table

PLANTED = Calibration(
    ((0.7, 0.15, 0.05), (0.6, 0.2, 0.1), (0.5, 0.2, 0.1), (0.4, 0.2, 0.15), (0.3, 0.2, 0.15)), 0.3
)


def traces(planted: Calibration, count: int, seed: int, *, cut: bool = True) -> list[list[int]]:
    """Ranks of drafts that behave exactly as planted; with a cut, some end early, as an output does."""
    rng = random.Random(seed)  # noqa: S311 - test data
    found = []
    for _ in range(count):
        trace: list[int] = []
        for row in planted.on_spine[: rng.randint(1, len(planted.on_spine)) if cut else None]:
            factor = 1.0 if all(rank == 0 for rank in trace) else planted.off_spine
            weights = [factor * one for one in row]
            trace.append(rng.choices([*range(len(row)), MISSED], [*weights, 1.0 - sum(weights)])[0])
            if trace[-1] == MISSED:
                break
        found.append(trace)
    return found


@pytest.mark.parametrize("planted", [0.1, 0.3, 0.8])
def test_the_planted_multiplier_and_shares_are_found(planted: float) -> None:
    made = Calibration(PLANTED.on_spine, planted)
    found = calibrate(traces(made, 20_000, seed=1), depths=5, ranks=3)
    assert found.off_spine == pytest.approx(planted, rel=0.08)
    for row, wanted in zip(found.on_spine, made.on_spine, strict=True):
        assert row == pytest.approx(wanted, abs=0.03)


def test_the_multiplier_is_hits_over_expected_hits() -> None:
    # On the spine: depth 0 ranks 0, 0, 1, 1; depth 1 ranks 0 and a miss. Off it: depth 1, a hit and a miss.
    found = calibrate([[0, 0], [0, MISSED], [1, 0], [1, MISSED]], depths=2, ranks=2)
    assert found.on_spine == ((0.5, 0.5), (0.5, 0.0))
    assert found.off_spine == 1.0  # one hit, where 2 x 0.5 were expected
    assert calibrate([[0, 0], [1, MISSED]], depths=2, ranks=2).off_spine == 0.0


def test_no_evidence_is_worth_nothing() -> None:
    found = calibrate([[0], [0]], depths=2, ranks=1)
    assert found.on_spine == ((1.0,), (0.0,))
    assert found.off_spine == 0.0


def test_what_stands_behind_a_miss_is_not_looked_at() -> None:
    assert calibrate([[MISSED, 0, 0], [0, 0, 0]], depths=3, ranks=1) == calibrate(
        [[MISSED], [0, 0, 0]], depths=3, ranks=1
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "holds no position"),
        ([[]], "holds no position"),
        ([[3]], "rank 3 is not in"),
        ([[-2]], "rank -2"),
    ],
)
def test_traces_that_cannot_be_are_refused(given: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(given, depths=1, ranks=3)


@pytest.mark.parametrize(
    ("shares", "multiplier", "message"),
    [
        (((0.6, 0.6),), 0.5, r"`on_spine`\[0\]"),
        (((0.5,), (0.5, 0.1)), 0.5, "`on_spine` needs"),
        ((), 0.5, "`on_spine` needs"),
        (((0.5,),), 1.1, "`off_spine` is 1.1"),
    ],
)
def test_a_child_likelier_than_its_parent_is_refused(
    shares: tuple[tuple[float, ...], ...], multiplier: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration(shares, multiplier)


def test_a_calibrated_tree_is_worth_what_the_calibration_says() -> None:
    table = random_table(3, 4)
    anchors = torch.tensor([0, 1])
    calibrated = Calibrated(PathTable(table, 3), PLANTED)
    for request, tree in enumerate(trees_of(grow(calibrated, anchors, budget=40, depths=(3, 3)))):
        spine = 0
        for node, found in enumerate(tree.path_log_probabilities):
            tokens = [tree.token_ids[one] for one in tree.path(node)]
            ranks = []
            for depth, token in enumerate(tokens):
                order = table(request, tuple(tokens[:depth])).sort(descending=True, stable=True).indices
                ranks.append(order.tolist().index(token))
            spine += not any(ranks)
            assert found == pytest.approx(torch.tensor(PLANTED.probability(ranks)).log().item(), abs=1e-6)
        assert spine == 3
        assert len(tree) == 3 + 9 + 27 or len(tree) == 40


def test_depths_and_ranks_that_were_not_calibrated_are_not_drafted() -> None:
    calibration = Calibration(((0.6, 0.2),), 0.5)
    grown = grow(
        Calibrated(PathTable(random_table(3, 4), 4), calibration), torch.tensor([0]), budget=9, depths=(3,)
    )
    assert trees_of(grown)[0].depths == (1, 1)


def test_expected_tokens_are_the_simulated_ones() -> None:
    """Of a fixed tree under the planted process: the mean over simulated target outputs."""
    paths = [(0,), (0, 0), (1,), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0)]
    expected = expected_tokens([PLANTED.probability(path) for path in paths])
    assert expected == pytest.approx(1 + 0.7 + 0.42 + 0.15 + 0.14 + 0.15 * 0.18 + 0.21 + 0.15 * 0.18 * 0.15)
    tokens = [
        1 + sum(tuple(trace[: len(path)]) == path for path in paths)
        for trace in traces(PLANTED, 40_000, seed=4, cut=False)
    ]
    assert sum(tokens) / len(tokens) == pytest.approx(expected, abs=0.02)
