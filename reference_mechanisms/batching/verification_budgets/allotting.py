"""One budget of verified rows for all requests: how large, and to whom.

Source: confidence-scheduled verification (DSpark), goodput budgets (SmartSpec/TurboSpec, AdaServe). The
most tokens a second are where (R + sum of the N largest survivals) / (draft + verify(R + N)) is largest;
costs are a staircase, so N is looked for at the ends of its stairs, over all of them.

At temperature above 0 the two halves may know different things. How large: only what was known before this
step's drafts were drawn, for a budget that grows because a drawn token looks good keeps that token more
often than it may. To whom: also the drafts themselves, since the survival of draft j is computed from
tokens in front of it, later drafts of the same request never come before it, and those of others are
independent of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from reference_mechanisms.batching.costs import StepCosts


def admitted(worths: Sequence[Sequence[float]], budget: int) -> tuple[int, ...]:
    """The `budget` drafts worth most, of all requests together, each request's from its front.

    Args:
        worths: of each request's drafts in order, not rising: survivals of a chain, path probabilities of
            the nodes of a tree.
        budget: drafts of all together.

    Returns:
        How many of each request. Of equals the shallower comes first, then the earlier request.

    Raises:
        ValueError: the worths of a request rise.
    """
    for request, one in enumerate(worths):
        if any(after > before for before, after in itertools.pairwise(one)):
            raise ValueError(
                f"request {request}: worths {list(one)} rise; a draft is worth no more than those in front"
            )
    taken = [0] * len(worths)
    waiting = [(-one[0], 0, request) for request, one in enumerate(worths) if one]
    heapq.heapify(waiting)
    for _ in range(budget):
        if not waiting:
            break
        _, depth, request = heapq.heappop(waiting)
        taken[request] += 1
        if depth + 1 < len(worths[request]):
            heapq.heappush(waiting, (-worths[request][depth + 1], depth + 1, request))
    return tuple(taken)


def rate(tokens: float, milliseconds: float) -> float:
    """Tokens a second."""
    return 1000.0 * tokens / milliseconds


def best_budget(
    expected: Sequence[Sequence[float]], costs: StepCosts, draft_ms: float
) -> tuple[int, float, float] | None:
    """The budget with the most expected tokens a second, the tokens and the milliseconds of its step.

    Args:
        expected: worths of each request's drafts, known before this step's drafts were drawn.
        costs: of steps.
        draft_ms: of drafting them.

    Returns:
        The smaller of equals; None: no bucket holds so many requests.
    """
    requests = len(expected)
    merged = sorted(itertools.chain.from_iterable(expected), reverse=True)
    tokens = list(itertools.accumulate(merged, initial=float(requests)))
    best: tuple[int, float, float] | None = None
    for edge in costs.edges(requests):
        budget = min(edge.rows - requests, len(merged))
        found = (budget, tokens[budget], costs.step_ms + draft_ms + edge.milliseconds)
        if best is None or rate(*found[1:]) > rate(*best[1:]):
            best = found
    return best
