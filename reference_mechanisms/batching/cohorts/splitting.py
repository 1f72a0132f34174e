"""Which requests a step verifies, and which are drafted for meanwhile.

Two half batches read the weights twice, so two cohorts pay only where a step is bound by computing, or
where drafting finds idle units beside it: that is measured (`OverlapCost`), not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reference_mechanisms.batching.adaptive_drafts.choosing import Choice
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.verification_budgets.allotting import rate


class Cohorts(NamedTuple):
    """Slots of a step."""

    verified: tuple[int, ...]
    drafted: tuple[int, ...]  # for, while the others are verified


def split(slots: Sequence[int], turn: int) -> Cohorts:
    """Every second slot by number, so that a request never changes its cohort.

    Args:
        slots: of the requests that decode.
        turn: of the step; cohorts take turns. A cohort without requests gives its turn away.
    """
    even = tuple(slot for slot in slots if slot % 2 == 0)
    odd = tuple(slot for slot in slots if slot % 2 == 1)
    mine, other = (odd, even) if turn % 2 else (even, odd)
    return Cohorts(mine, other) if mine else Cohorts(other, ())


def pays(whole: Choice, half: Choice, requests: int, costs: StepCosts) -> bool:
    """Whether two steps of half batches with overlap are faster than one of all.

    Args:
        whole: what one batch would do.
        half: what each cohort would do.
        requests: of both cohorts.
        costs: of steps; without entries for overlap it does not pay.
    """
    each = -(-requests // 2)
    beside = costs.overlap_ms(each, each + half.budget, half.drafts)
    if beside is None:
        return False
    return rate(half.tokens, beside + costs.step_ms) > whole.tokens_per_second()
