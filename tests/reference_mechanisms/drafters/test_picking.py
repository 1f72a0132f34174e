from __future__ import annotations

import pytest
import torch

from reference_mechanisms.drafters.picking import Drawing, Picker
from reference_mechanisms.errors import RequestError
from reference_mechanisms.sampling import uniform

SCORES = torch.tensor([[0.0, 2.0, 1.0], [0.5, 0.0, 3.0]])
IDS = torch.tensor([4, 0, 2])


def test_at_temperature_0_the_best_score_wins_and_no_distribution_is_told() -> None:
    picker = Picker([Drawing("a", 0.0, 1, 0), Drawing("b", 0.0, 2, 0)], 6)
    assert picker(0, SCORES, IDS).tolist() == [0, 2]
    assert picker.probabilities(0, 1) is None


def test_a_draw_uses_the_distribution_it_tells() -> None:
    picker = Picker([Drawing("a", 0.0, 1, 0), Drawing("b", 2.0, 2, 5)], 6, lambda key, position, purpose: 0.6)
    chosen = picker(0, SCORES, IDS)
    q = picker.probabilities(1, 1)
    assert q is not None
    expected = torch.zeros(6, dtype=torch.float64)
    expected[IDS] = (SCORES[1].double() / 2.0).softmax(0)
    torch.testing.assert_close(q[0], expected)
    inside = int((expected.cumsum(0) <= 0.6).sum())
    assert chosen.tolist() == [0, inside]


def test_the_random_number_is_that_of_the_request_and_the_position() -> None:
    seen: list[tuple[int, int, str]] = []

    def watching(key: int, position: int, purpose: str) -> float:
        seen.append((key, position, purpose))
        return uniform(key, position, "draft")

    picker = Picker([Drawing("a", 1.0, 77, 5)], 6, watching)
    for index in range(3):
        picker(index, SCORES[:1], IDS)
    assert seen == [(77, 5, "draft"), (77, 6, "draft"), (77, 7, "draft")]


def test_scores_that_are_no_numbers_are_an_error() -> None:
    picker = Picker([Drawing("a", 1.0, 1, 0)], 6)
    with pytest.raises(RequestError, match="a: the drafter computed logits"):
        picker(0, torch.full((1, 3), torch.nan), IDS)
