from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from reference_mechanisms.sampling import Purpose
from reference_mechanisms.verification.chain import Verified, verify_choices, verify_sampled

VOCAB = 3
GRID = 12  # points at which the unit interval is cut; every probability below is a multiple of 1/12


@pytest.mark.parametrize(
    ("draft", "choices", "expected"),
    [
        pytest.param((), (7,), Verified(0, 7), id="nothing drafted"),
        pytest.param((5,), (5, 6), Verified(1, 6), id="all right, then the bonus token"),
        pytest.param((5, 6, 7), (9, 6, 7, 8), Verified(0, 9), id="first wrong"),
        pytest.param((5, 9, 7, 8), (5, 6, 7, 8, 1), Verified(1, 6), id="right again behind a mismatch"),
    ],
)
def test_the_kept_draft_is_the_longest_right_prefix(
    draft: Sequence[int], choices: Sequence[int], expected: Verified
) -> None:
    assert verify_choices(draft, choices) == expected


def distributions() -> list[tuple[Fraction, ...]]:
    """Every distribution over three tokens in quarters."""
    quarters = [Fraction(n, 4) for n in range(5)]
    return [p for p in itertools.product(quarters, repeat=VOCAB) if sum(p) == 1]


def outcomes(
    p: Sequence[Sequence[Fraction]], q: Sequence[Fraction]
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Every output of one draft token from q, verified against p, with its exact probability.

    The random numbers of the two decisions are integrated exactly: the interval is cut where any
    decision can change, and one point inside each piece is tried.
    """
    target, proposal = tensor(p), tensor([q])
    for token, drawn in enumerate(q):
        if not drawn:
            continue
        cuts = sorted({Fraction(0), Fraction(1), *([min(Fraction(1), p[0][token] / drawn)])})
        for low, high in itertools.pairwise(cuts):
            middle = (low + high) / 2
            for settled, chance in settle(target, proposal, token, middle):
                yield settled, drawn * (high - low) * chance


def settle(
    target: Tensor, proposal: Tensor, token: int, accept: Fraction
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Outputs over a fine grid of the second random number."""
    pieces = 240  # a common multiple of every denominator that residuals in quarters can have
    for piece in range(pieces):
        point = (Fraction(piece) + Fraction(1, 2)) / pieces

        def uniform(position: int, purpose: Purpose, point: Fraction = point) -> float:
            del position
            return float(accept if purpose == "accept" else point)

        found = verify_sampled([token], target, proposal, uniform)
        yield (*([token] * found.accepted), found.next_token), Fraction(1, pieces)


def tensor(rows: Sequence[Sequence[Fraction]]) -> Tensor:
    return torch.tensor([[float(value) for value in row] for row in rows], dtype=torch.float64)


PAIRS = list(itertools.product(distributions(), repeat=2))


@pytest.mark.parametrize(("p", "q"), PAIRS[::7], ids=[str(n) for n in range(len(PAIRS[::7]))])
def test_the_first_emitted_token_has_exactly_the_targets_distribution(
    p: tuple[Fraction, ...], q: tuple[Fraction, ...]
) -> None:
    bonus = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))
    first = [Fraction(0)] * VOCAB
    second = [Fraction(0)] * VOCAB
    accepted = Fraction(0)
    for output, chance in outcomes((p, bonus), q):
        first[output[0]] += chance
        if len(output) == 2:
            second[output[1]] += chance
            accepted += chance
    assert tuple(first) == p
    assert accepted == sum(min(a, b) for a, b in zip(p, q, strict=True))
    if accepted:
        assert tuple(value / accepted for value in second) == bonus


def test_a_token_the_target_cannot_emit_is_never_kept() -> None:
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    proposal = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert verify_sampled([0], target, proposal, lambda position, purpose: 0.0) == Verified(0, 1)


def test_equal_distributions_keep_every_draft_whatever_the_random_number() -> None:
    row = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    found = verify_sampled(
        [1, 2], row.repeat(3, 1), row.repeat(2, 1), lambda position, purpose: 1.0 - 2.0**-53
    )
    assert found.accepted == 2


def test_positions_behind_the_first_rejection_are_not_looked_at() -> None:
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    proposal = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    asked: list[tuple[int, Purpose]] = []

    def uniform(position: int, purpose: Purpose) -> float:
        asked.append((position, purpose))
        return 0.5

    assert verify_sampled([0, 0], target, proposal, uniform) == Verified(0, 1)
    assert asked == [(0, "accept"), (0, "residual")]
