from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from reference_mechanisms.batching.costs import StepCosts, VerifyCost
from reference_mechanisms.batching.scheduler import Running, State, allot, plan
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.verification_budgets.allotting import admitted, best_budget, rate
from reference_mechanisms.drafters.scheduling import survivals
from reference_mechanisms.sampling import Purpose
from reference_mechanisms.verification.chain import Verified, verify_sampled

P, Q = (0.7, 0.3), (0.5, 0.5)  # target and drafter, at every position
# The counter-example of DSpark's appendix: steps a second of 1, 2 and 3 rows.
COSTS = StepCosts(
    verify=tuple(
        VerifyCost(requests=1, rows=rows, milliseconds=1000.0 / steps)
        for rows, steps in ((1, 1.0), (2, 0.5), (3, 0.45))
    )
)


def confidences(draft: Sequence[int]) -> list[float]:
    """The second hangs on the first drawn token, as a confidence head's does."""
    return [0.8, 0.9 if draft[0] == 0 else 0.0]


def outcomes(draft: tuple[int, ...]) -> Iterator[tuple[float, Verified]]:
    """Every way in which rejection sampling of a draft can go, with its probability."""
    target = torch.tensor([P] * (len(draft) + 1), dtype=torch.float64)
    proposal = torch.tensor([Q] * len(draft), dtype=torch.float64)
    for accepts in itertools.product((True, False), repeat=len(draft)):
        for index in range(2):
            chance = 1.0
            used = accepts.index(False) + 1 if False in accepts else len(draft)
            if any(accepts[used:]):
                continue  # the same way again: what is behind a rejection is not looked at
            for accept, token in zip(accepts[:used], draft, strict=False):
                keep = min(1.0, P[token] / Q[token])
                chance *= keep if accept else 1.0 - keep
            left = [max(0.0, p - q) for p, q in zip(P, Q, strict=True)] if False in accepts else list(P)
            chance *= left[index] / sum(left)
            if not chance:
                continue

            def point(
                place: int, purpose: Purpose, at: int = index, ways: tuple[bool, ...] = accepts
            ) -> float:
                if purpose == "accept":
                    return 0.0 if ways[place] else 1.0 - 1e-9
                return (0.001, 0.999)[at]

            yield chance, verify_sampled(draft, target, proposal, point)


def first_token(verify: Callable[[tuple[int, ...]], int]) -> tuple[float, float]:
    """Distribution of the first token that is emitted, over all draws of two drafts.

    Args:
        verify: how many of the drafts are verified.
    """
    found = [0.0, 0.0]
    for draft in itertools.product(range(2), repeat=2):
        drawn = Q[draft[0]] * Q[draft[1]]
        kept = draft[: verify(draft)]
        for chance, verified in outcomes(kept):
            found[kept[0] if verified.accepted else verified.next_token] += drawn * chance
    return found[0], found[1]


def test_the_counter_example_is_seen_and_the_scheduler_is_immune() -> None:
    """A budget from this step's confidences looks at what was drawn; one from before does not."""

    def from_current(draft: tuple[int, ...]) -> int:
        worths = [survivals(confidences(draft))]
        found = best_budget(worths, COSTS, 0.0)
        assert found is not None
        return admitted(worths, found[0])[0]

    assert first_token(from_current) == pytest.approx((0.85, 0.15), abs=1e-12)

    for expected in ((0.8, 0.7), (0.8, 0.0), (0.1, 0.0)):
        state = State(running=(Running(0, 2, expected),))
        budget = plan(state, BatchSettings(slots=1, budget=True), COSTS, 2).budget

        def planned(draft: tuple[int, ...], most: int | None = budget) -> int:
            return allot([survivals(confidences(draft))], most)[0]

        assert first_token(planned) == pytest.approx(P, abs=1e-12)


def test_a_draft_has_no_part_in_whether_it_is_verified_itself() -> None:
    """Two requests share one budget by current confidences: both stay distributed as the target."""
    found = [0.0, 0.0]
    for mine in itertools.product(range(2), repeat=2):
        for other in itertools.product(range(2), repeat=2):
            drawn = Q[mine[0]] * Q[mine[1]] * Q[other[0]] * Q[other[1]]
            worths = [survivals(confidences(mine)), survivals([0.75, 0.99 if other[0] else 0.1])]
            kept = mine[: allot(worths, 2)[0]]
            for chance, verified in outcomes(kept):
                found[kept[0] if kept and verified.accepted else verified.next_token] += drawn * chance
    assert found == pytest.approx(P, abs=1e-12)


def test_the_best_of_all_requests_are_admitted_front_first() -> None:
    worths = [[0.9, 0.2], [0.5, 0.5, 0.5], [], [0.9]]
    assert admitted(worths, 0) == (0, 0, 0, 0)
    assert admitted(worths, 1) == (1, 0, 0, 0)
    assert admitted(worths, 2) == (1, 0, 0, 1)
    assert admitted(worths, 4) == (1, 2, 0, 1)
    assert admitted(worths, 6) == (2, 3, 0, 1)
    assert admitted(worths, 99) == (2, 3, 0, 1)
    with pytest.raises(ValueError, match=r"request 1: worths .* rise"):
        admitted([[0.5], [0.1, 0.2]], 1)


def test_the_budget_is_the_best_over_all_stairs() -> None:
    """Not the first peak: a stair that loses lies in front of one that wins."""
    costs = StepCosts(
        verify=tuple(
            VerifyCost(requests=2, rows=rows, milliseconds=ms)
            for rows, ms in ((2, 1.0), (4, 1.95), (8, 2.0), (16, 9.0))
        )
    )
    expected = [[0.9, 0.8, 0.7, 0.6]] * 2
    every = {
        budget: rate(
            2 + sum(sorted(itertools.chain(*expected), reverse=True)[:budget]), costs.verify_ms(2, 2 + budget)
        )
        for budget in range(9)
    }
    found = best_budget(expected, costs, 0.0)
    assert found is not None
    assert found[0] == max(every, key=lambda budget: every[budget]) == 6
    assert every[2] < every[0]
    assert best_budget([[0.5]] * 3, costs, 0.0) is None
