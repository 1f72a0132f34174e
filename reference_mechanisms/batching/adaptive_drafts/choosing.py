"""The draft length for the load at hand, and speculation off where it does not pay.

Source: goodput-driven draft lengths (SmartSpec, arXiv 2406.14066), switching off at high load (Nightjar).
The length is chosen before anything is drafted, from what earlier steps accepted: it cannot bias an output.
A length is kept until another is better by a margin, and drafting is taken up again only if its gain over
the steps it is expected to last pays for what the drafter must catch up with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_mechanisms.batching.costs import CostError, StepCosts
from reference_mechanisms.batching.verification_budgets.allotting import best_budget, rate


class Habit(NamedTuple):
    """How readily the draft length changes."""

    margin: float = 0.02  # share by which another length must be better
    stay: int = 64  # steps that a change is expected to last


class Choice(NamedTuple):
    """What to draft, and how much of it to verify."""

    drafts: int  # of each request, at most; 0: speculation is off
    budget: int  # drafts verified of all requests together
    tokens: float  # expected of the step
    milliseconds: float  # of the step

    def tokens_per_second(self, extra_ms: float = 0.0) -> float:
        """With some milliseconds on top of the step's own."""
        return rate(self.tokens, self.milliseconds + extra_ms)


HABIT = Habit()
Value = Callable[[Sequence[Sequence[float]], int, StepCosts], Choice | None]  # None: no bucket holds it


def uniform(expected: Sequence[Sequence[float]], drafts: int, costs: StepCosts) -> Choice | None:
    """Every request verifies all its drafts."""
    cut = [one[:drafts] for one in expected]
    rows = sum(map(len, cut))
    bucket = costs.bucket(len(cut), len(cut) + rows)
    if bucket is None:
        return None
    milliseconds = costs.step_ms + costs.draft_ms(len(cut), drafts) + bucket.milliseconds
    return Choice(drafts, rows, len(cut) + sum(map(sum, cut)), milliseconds)


def budgeted(expected: Sequence[Sequence[float]], drafts: int, costs: StepCosts) -> Choice | None:
    """Requests share the budget that is best for so many drafts."""
    cut = [one[:drafts] for one in expected]
    found = best_budget(cut, costs, costs.draft_ms(len(cut), drafts))
    return None if found is None else Choice(drafts, *found)


def choose(
    expected: Sequence[Sequence[float]],
    lengths: Sequence[int],
    costs: StepCosts,
    value: Value,
    before: int | None = None,
    habit: Habit = HABIT,
) -> Choice:
    """The length with the most expected tokens a second; the shorter of equals.

    Args:
        expected: survivals of each request's drafts, known before they are drawn.
        lengths: to choose from.
        costs: of steps.
        value: `uniform` or `budgeted`.
        before: length of the step before; None: there was none.
        habit: how readily it changes.

    Raises:
        CostError: no bucket holds so many requests with any of the lengths.
    """
    found = (value(expected, drafts, costs) for drafts in sorted(set(lengths)))
    choices = [one for one in found if one is not None]
    if not choices:
        raise CostError(
            f"no bucket of `verify` holds {len(expected)} requests with {min(lengths)} drafts each; "
            f"measure a larger one"
        )
    held = next((one for one in choices if one.drafts == before), None)
    # Drafters that were off must take in what they missed; the stay pays for it.
    again = costs.catch_up_ms * len(expected) / habit.stay if before == 0 else 0.0

    def worth(one: Choice) -> float:
        return one.tokens_per_second(again if one.drafts else 0.0)

    best = max(choices, key=lambda one: (worth(one), -one.drafts))
    if held is None or worth(best) > worth(held) * (1.0 + habit.margin):
        return best
    return held
