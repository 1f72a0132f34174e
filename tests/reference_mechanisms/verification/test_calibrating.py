from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from reference_mechanisms.verification.calibrating import (
    MISSED,
    TRUST,
    Calibrated,
    Calibration,
    Judged,
    Line,
    calibrate,
    expected_tokens,
)
from reference_mechanisms.verification.growing import grow, trees_of
from tests.reference_mechanisms.verification.branchings import PathTable, random_table

CPU = torch.device("cpu")
PLANTED = Calibration((Line(1.3, 0.1), Line(1.2, 0.0), Line(0.8, -0.3)), 0.3)
SHARES = ((0.7, 0.15, 0.05), (0.6, 0.2, 0.1), (0.5, 0.2, 0.1))  # of ranks at each depth


def chance(calibration: Calibration, depth: int, log_probability: float, *, spine: bool) -> float:
    slope, offset = calibration.lines[depth]
    return min(1.0, math.exp(slope * log_probability + offset)) * (1.0 if spine else calibration.off_spine)


def drafts(planted: Calibration, count: int, seed: int) -> list[list[Judged]]:
    """Drafts of a drafter that is wrong exactly as planted; some end early, as an output does."""
    rng, depths = random.Random(seed), len(planted.lines)  # noqa: S311 - test data
    found = []
    for _ in range(count):
        trace: list[Judged] = []
        for depth in range(depths if rng.random() < 0.8 else rng.randint(1, depths)):
            best = rng.uniform(0.1, 0.75)
            told = [math.log(best), math.log(0.6 * (0.9 - best)), math.log(0.3 * (0.9 - best))]
            spine = all(place.rank == 0 for place in trace)
            weights = [chance(planted, depth, one, spine=spine) for one in told]
            ranks = [*range(len(told)), MISSED]
            trace.append(Judged(torch.tensor(told), rng.choices(ranks, [*weights, 1.0 - sum(weights)])[0]))
            if trace[-1].rank == MISSED:
                break
        found.append(trace)
    return found


def judged(*places: tuple[Sequence[float], int]) -> list[Judged]:
    return [Judged(torch.tensor(told), rank) for told, rank in places]


@pytest.mark.parametrize("multiplier", [0.1, 0.3, 0.8])
def test_the_planted_maps_and_multiplier_are_found(multiplier: float) -> None:
    made = Calibration(PLANTED.lines, multiplier)
    found = calibrate(drafts(made, 15_000, seed=1), depths=3)
    assert found.off_spine == pytest.approx(multiplier, rel=0.1, abs=0.02)
    for depth in range(3):
        for told in (0.6, 0.3, 0.1):
            wanted = chance(made, depth, math.log(told), spine=True)
            assert chance(found, depth, math.log(told), spine=True) == pytest.approx(wanted, rel=0.15)


def test_a_drafter_that_is_right_about_itself_keeps_its_word() -> None:
    found = calibrate(drafts(Calibration((Line(1.0, 0.0),) * 3, 1.0), 12_000, seed=2), depths=3)
    for slope, offset in found.lines:
        assert slope == pytest.approx(1.0, abs=0.1)
        assert offset == pytest.approx(0.0, abs=0.1)
    assert found.off_spine == pytest.approx(1.0, abs=0.03)


def test_few_records_of_a_depth_are_drawn_to_the_map_of_all() -> None:
    """And no child is worth nothing, whatever was not seen."""
    often = drafts(Calibration(PLANTED.lines[:2], 1.0), 4_000, seed=3)
    told = [math.log(0.5), math.log(0.2), math.log(0.1)]
    never = [[*judged((told, 0), (told, 0), (told, MISSED))] for _ in range(5)]
    found = calibrate([*often, *never], depths=4)
    pooled, few, none = found.lines[0], found.lines[2], found.lines[3]
    assert few.offset < none.offset  # five misses count for something
    assert few.offset == pytest.approx(none.offset, abs=0.4)
    assert few.slope == pytest.approx(none.slope, abs=0.2)
    assert none != pooled
    numbers = found.numbers(4, CPU)
    assert bool(numbers.worth(torch.full((4, 3), -8.0), slice(None)).isfinite().all())


def test_the_multiplier_is_hits_over_expected_hits_drawn_to_one() -> None:
    told = [math.log(0.5), math.log(0.25)]
    traces = [judged((told, 1), (told, MISSED)) for _ in range(40)]
    traces += [judged((told, 0), (told, rank)) for rank in (0, 1, MISSED, 0) * 20]
    found = calibrate(traces, depths=2)
    expected = sum(40 * chance(found, 1, one, spine=True) for one in told)
    assert found.off_spine == pytest.approx(TRUST / (expected + TRUST), rel=1e-5)
    assert calibrate(traces[40:], depths=2).off_spine == 1.0  # nothing was seen off the spine


def test_records_without_a_hit_or_a_miss_can_be_fitted() -> None:
    told = [math.log(0.9), math.log(0.05)]
    (wrong,) = calibrate([judged((told, MISSED))] * 50, depths=1).lines
    (right,) = calibrate([judged((told, 0))] * 50, depths=1).lines
    assert math.isfinite(wrong.offset)
    assert wrong.slope * told[0] + wrong.offset < -2.0 < -0.2 < right.slope * told[0] + right.offset


def test_what_stands_behind_a_miss_is_not_looked_at() -> None:
    told = [math.log(0.5)]
    whole = judged((told, 0), (told, 0), (told, 0))
    assert calibrate([judged((told, MISSED), (told, 0), (told, 0)), whole], depths=3) == calibrate(
        [judged((told, MISSED)), whole], depths=3
    )


@pytest.mark.parametrize(
    ("ranks", "message"),
    [([], "holds no position"), ([3], "rank 3 is not in"), ([-2], "rank -2")],
)
def test_traces_that_cannot_be_are_refused(ranks: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate([judged(*(([-1.0, -2.0, -3.0], rank) for rank in ranks))], depths=1)


@pytest.mark.parametrize(
    ("lines", "multiplier", "message"),
    [
        ((), 0.5, "`lines` needs"),
        ((Line(1.0, 0.0), Line(0.0, 0.0)), 0.5, r"`lines`\[1\]"),
        ((Line(1.0, math.inf),), 0.5, r"`lines`\[0\]"),
        ((Line(1.0, 0.0),), 1.1, "`off_spine` is 1.1"),
    ],
)
def test_a_map_that_turns_lists_round_is_refused(
    lines: tuple[Line, ...], multiplier: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Calibration(lines, multiplier)


def test_a_calibrated_tree_is_worth_what_the_calibration_says() -> None:
    """Depths behind the last that was calibrated have its map."""
    table = random_table(3, 4)
    anchors = torch.tensor([0, 1])
    made = Calibration(PLANTED.lines[:2], 0.3)
    calibrated = Calibrated(PathTable(table, 3), made.numbers(3, CPU))
    for request, tree in enumerate(trees_of(grow(calibrated, anchors, budget=40, depths=(3, 3)))):
        spine = 0
        for node, found in enumerate(tree.path_log_probabilities):
            tokens, wanted, best = [tree.token_ids[one] for one in tree.path(node)], 0.0, True
            for depth, token in enumerate(tokens):
                scores = table(request, tuple(tokens[:depth]))
                wanted += math.log(chance(made, min(depth, 1), float(scores[token]), spine=best))
                best = best and token == int(scores.argmax())
            spine += best
            assert found == pytest.approx(wanted, abs=1e-5)
        assert spine == 3
        assert len(tree) == 3 + 9 + 27 or len(tree) == 40


def test_the_drafters_own_word_grows_the_raw_tree() -> None:
    table, anchors = PathTable(random_table(3, 4), 3), torch.tensor([0, 1])
    numbers = Calibration((Line(1.0, 0.0),), 1.0).numbers(3, CPU)
    both = (table, Calibrated(table, numbers))
    one, other = (grow(branching, anchors, budget=12, depths=(3, 3)) for branching in both)
    assert torch.equal(one.token_ids, other.token_ids)
    assert torch.equal(one.parents, other.parents)


def simulated(count: int, seed: int) -> list[list[int]]:
    """Ranks of the target's tokens, by the shares; behind a token that is not the best a third of them."""
    rng = random.Random(seed)  # noqa: S311 - test data
    found = []
    for _ in range(count):
        trace: list[int] = []
        for row in SHARES:
            factor = 1.0 if not any(trace) else 0.3
            weights = [factor * one for one in row]
            trace.append(rng.choices([*range(len(row)), MISSED], [*weights, 1.0 - sum(weights)])[0])
            if trace[-1] == MISSED:
                break
        found.append(trace)
    return found


def path_probability(ranks: Sequence[int]) -> float:
    factors = [1.0 if not any(ranks[:depth]) else 0.3 for depth in range(len(ranks))]
    return math.prod(
        factor * SHARES[depth][rank] for depth, (factor, rank) in enumerate(zip(factors, ranks, strict=True))
    )


def test_expected_tokens_are_the_simulated_ones() -> None:
    """Of a fixed tree under a known process: the mean over simulated target outputs."""
    paths = [(0,), (0, 0), (1,), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0)]
    expected = expected_tokens([path_probability(path) for path in paths])
    assert expected == pytest.approx(1 + 0.7 + 0.42 + 0.15 + 0.14 + 0.15 * 0.18 + 0.21 + 0.15 * 0.18 * 0.15)
    tokens = [
        1 + sum(tuple(trace[: len(path)]) == path for path in paths) for trace in simulated(40_000, seed=4)
    ]
    assert sum(tokens) / len(tokens) == pytest.approx(expected, abs=0.02)
