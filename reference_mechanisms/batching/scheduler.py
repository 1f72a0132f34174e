"""What the next step does: state in, plan out. The batch loop and the simulator drive the same functions.

A plan is made before anything is drafted, so nothing in it hangs on a token that is drawn in its step;
`allot` shares the planned budget when drafts are there, by worths that each draft's own token has no part
in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_mechanisms.batching.adaptive_drafts.choosing import Choice, budgeted, choose, uniform
from reference_mechanisms.batching.chunked_prefill.pieces import Piece, pieces
from reference_mechanisms.batching.cohorts.splitting import Cohorts, pays, split
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.verification_budgets.allotting import admitted


class Running(NamedTuple):
    """A request that decodes."""

    slot: int
    limit: int  # most drafts that it can use
    expected: tuple[float, ...]  # survival of each draft, known before they are drawn, not rising


class State(NamedTuple):
    """All that a plan hangs on."""

    running: tuple[Running, ...]  # by slot
    filling: tuple[tuple[int, int], ...] = ()  # slot and prompt rows left, by arrival
    waiting: tuple[int, ...] = ()  # prompt rows of the requests without a slot, by arrival
    free: tuple[int, ...] = ()  # slots, the first is taken first
    drafts_before: int | None = None  # draft length of the step before
    turn: int = 0  # of the cohorts


class Plan(NamedTuple):
    """What the next step does."""

    joins: tuple[int, ...]  # slots that the first waiting requests take
    prefill: tuple[Piece, ...]  # of requests that have a slot, those that join among them
    cohorts: Cohorts  # who is verified, and who is drafted for meanwhile
    drafts: int  # of each request, at most; 0: speculation is off
    budget: int | None  # drafts of all verified requests together; None: all that they have


def plan(state: State, settings: BatchSettings, costs: StepCosts | None, drafts: int) -> Plan:
    """The plan of the next step.

    Args:
        state: of all requests.
        settings: which mechanisms are on.
        costs: measured; None: mechanisms that need them are off.
        drafts: most draft tokens, or nodes of a tree, that the arm has.

    Raises:
        CostError: no bucket holds the requests.
    """
    joins = state.free[: len(state.waiting)]
    filling = (*state.filling, *zip(joins, state.waiting, strict=False))
    going = pieces(filling, settings.prefill_rows, decoding=bool(state.running))
    if not state.running:
        return Plan(joins, going, Cohorts((), ()), drafts, None)
    slots = tuple(one.slot for one in state.running)
    if costs is None:
        cohorts = split(slots, state.turn) if settings.cohorts else Cohorts(slots, ())
        return Plan(joins, going, cohorts, drafts, None)
    whole = _chosen(state.running, state, settings, costs, drafts)
    if settings.cohorts and len(slots) > 1:
        cohorts = split(slots, state.turn)
        mine = [one for one in state.running if one.slot in cohorts.verified]
        half = _chosen(mine, state, settings, costs, drafts)
        if pays(whole, half, len(slots), costs):
            return Plan(joins, going, cohorts, half.drafts, _budget(half, settings))
    return Plan(joins, going, Cohorts(slots, ()), whole.drafts, _budget(whole, settings))


def allot(worths: Sequence[Sequence[float]], budget: int | None) -> tuple[int, ...]:
    """How many drafts of each request are verified.

    Args:
        worths: of each request's drafts, not rising.
        budget: of the plan.
    """
    return tuple(map(len, worths)) if budget is None else admitted(worths, budget)


def _chosen(
    running: Sequence[Running], state: State, settings: BatchSettings, costs: StepCosts, drafts: int
) -> Choice:
    expected = [one.expected[: min(drafts, one.limit)] for one in running]
    lengths = range(drafts + 1) if settings.adaptive else (drafts,)
    value = budgeted if settings.budget or settings.tree_budget else uniform
    return choose(expected, lengths, costs, value, state.drafts_before)


def _budget(choice: Choice, settings: BatchSettings) -> int | None:
    return choice.budget if settings.budget or settings.tree_budget else None
