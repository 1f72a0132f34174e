from __future__ import annotations

import itertools
import random

import pytest
import torch

from reference_mechanisms.drafters.scheduling import (
    at_least,
    calibration_error,
    confidences_of,
    most_tokens_per_second,
    sequential_temperatures,
    survivals,
)

SPEED = {1: 1.0, 2: 0.5, 3: 0.45}


def global_best(confidences: list[float]) -> int:
    """The mistake: looks past a draft to decide on it."""
    alive = survivals(confidences)
    values = [(1 + sum(alive[:length])) * SPEED[1 + length] for length in range(len(alive) + 1)]
    return values.index(max(values))


def output_law(length_of: dict[int, int]) -> list[float]:
    """Law of one output token; a draft is verified where its length is above 0."""
    p, q = (0.7, 0.3), (0.5, 0.5)
    law = [0.0, 0.0]
    for draft in range(2):
        if length_of[draft] == 0:
            for token in range(2):
                law[token] += q[draft] * p[token]
            continue
        keep = min(1.0, p[draft] / q[draft])
        law[draft] += q[draft] * keep
        law[0] += q[draft] * (1 - keep)  # the residual is token 0
    return law


def test_the_search_stops_at_the_first_draft_that_does_not_pay() -> None:
    schedule = most_tokens_per_second(SPEED.__getitem__)
    behind = {0: 0.9, 1: 0.0}  # confidence of the second draft, by the first one
    assert {token: schedule([[0.8, c]])[0] for token, c in behind.items()} == {0: 0, 1: 0}
    biased = {token: global_best([0.8, c]) for token, c in behind.items()}
    assert biased == {0: 2, 1: 0}
    assert output_law(biased) == pytest.approx([0.85, 0.15])
    assert output_law({0: 0, 1: 0}) == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize("seed", range(20))
def test_whether_a_draft_is_verified_hangs_on_nothing_behind_it(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - test data
    speeds = {rows: 1 / (1 + rng.random() * rows) for rows in range(1, 12)}
    schedule = most_tokens_per_second(speeds.__getitem__)
    before = [[rng.random() ** 0.2 for _ in range(3)] for _ in range(3)]
    lengths = schedule(before)
    for request, draft in itertools.product(range(3), range(3)):
        after = [list(one) for one in before]
        for later in range(draft + 1, 3):
            after[request][later] = rng.choice((0.0, 1.0, rng.random()))
        assert (schedule(after)[request] > draft) == (lengths[request] > draft)


def test_the_most_likely_drafts_of_all_requests_are_admitted_first() -> None:
    flat = most_tokens_per_second(lambda rows: 1.0 if rows <= 5 else 0.1)
    assert flat([[0.9, 0.9, 0.9], [0.5, 0.9]]) == [3, 0]
    assert flat([[0.9, 0.5, 0.9], [0.6, 0.9]]) == [1, 2]
    assert flat([[], [1.0]]) == [0, 1]
    assert most_tokens_per_second(lambda rows: 1.0)([[1.0, 1.0], [0.3]]) == [2, 1]


def test_the_search_does_not_go_on_with_another_request() -> None:
    uneven = most_tokens_per_second({2: 1.0, 3: 0.5, 4: 0.6}.__getitem__)
    assert uneven([[0.9], [0.9]]) == [0, 0]


def test_a_threshold_cuts_at_the_first_doubt() -> None:
    assert at_least(0.5)([[0.9, 0.4, 0.9], [0.5], [0.1]]) == [1, 1, 0]


def test_survivals_are_running_products() -> None:
    assert survivals([0.5, 0.5, 0.0, 1.0]) == [0.5, 0.25, 0.0, 0.0]


def test_calibration_error_is_the_mean_gap_over_bins() -> None:
    predicted = torch.tensor([0.1, 0.1, 0.9, 0.9])
    happened = torch.tensor([True, False, True, True])
    assert calibration_error(predicted, happened) == pytest.approx((2 * 0.4 + 2 * 0.1) / 4)


def test_temperatures_undo_a_known_distortion_of_each_position() -> None:
    generator = torch.Generator().manual_seed(0)
    true_logits = torch.randn(20000, 3, generator=generator) * 1.5 + 0.5
    kept = torch.rand(20000, 3, generator=generator) < true_logits.sigmoid()
    accepted = kept.long().cumprod(1).sum(1)
    distortion = torch.tensor([3.0, 0.5, 1.5])
    found = sequential_temperatures(true_logits * distortion, accepted, torch.full((20000,), 3))
    assert found == pytest.approx(distortion.tolist(), rel=0.35)
    calibrated = confidences_of(true_logits * distortion, found).cumprod(1)
    raw = confidences_of(true_logits * distortion).cumprod(1)
    for position in range(3):
        happened = accepted > position
        assert calibration_error(calibrated[:, position], happened) < 0.02
        assert calibration_error(raw[:, position], happened) > 0.03


def test_a_position_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="position 1"):
        sequential_temperatures(torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([1, 1]))
