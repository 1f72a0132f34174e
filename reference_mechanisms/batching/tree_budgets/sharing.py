"""The nodes worth most of all requests' trees together.

Every request's nodes stand in falling order of path probability, each behind its parent, so that a
beginning of them is a tree: the best B nodes of all are B picks from the fronts, as for chains. Trees hold
the drafter's best tokens, nothing is drawn, and the walk follows the target's own choices; so any sharing
leaves the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.batching.verification_budgets.allotting import admitted
from reference_mechanisms.verification.tree import DraftTree


def shared(trees: Sequence[DraftTree], budget: int) -> list[DraftTree]:
    """The beginnings of these trees that are worth most together.

    Args:
        trees: of each request.
        budget: nodes of all.
    """
    worths = [tree.path_probabilities for tree in trees]
    return [tree.first(count) for tree, count in zip(trees, admitted(worths, budget), strict=True)]
