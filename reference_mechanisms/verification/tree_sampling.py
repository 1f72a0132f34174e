"""Trees at temperature above 0: two ways whose output is distributed exactly as the target's.

**Along choices** (`follow_choices`; the engine's way). A token is drawn from the target's distribution behind
the anchor, the walk goes down if a child carries it, and so on. The draws do not look at the tree, so the
output is the target's own for any tree that does not look at the draws, and no distribution of the drafter is
needed. With random numbers by position it equals autoregressive output token by token.

**Rejection over siblings** (`reject_siblings`). Children of a node were drawn one after the other without
replacement: the first from q, each next one from q without the tokens before it, normalised. In that order,
child x is kept with probability min(1, p(x) / q(x)); at a rejection p becomes max(0, p - q) normalised, and q
loses x; behind the last child the next token is drawn from what is left of p. By induction over the children
the token that leaves a node is distributed as p. Source: recursive rejection sampling without replacement
(Jeon et al., arXiv 2402.14160; Yang et al., arXiv 2401.06706, for several candidates). Children without a
distribution are certain: q is a point mass, and x is kept with probability p(x).

What the second way demands: children in the order in which they were drawn, and a number of children that is
fixed before they are. A tree that is cut by what was drawn (the best of the drawn paths, say) is biased; so
trees that `growing.grow` finds are verified along choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.verification.tree import ANCHOR


class Chance(Protocol):
    """Where random decisions come from; each call is independent of all others."""

    def accept(self, probability: float) -> bool:
        """True with this probability."""
        ...

    def draw(self, probabilities: Tensor) -> int:
        """A token from a distribution [vocabulary], which sums to 1 up to rounding."""
        ...


class Walked(NamedTuple):
    """The accepted path of a tree."""

    path: list[int]  # its rows, the anchor's 0 first
    next_token: int  # the token behind it


def follow_choices(
    token_ids: Sequence[int], parents: Sequence[int], choose: Callable[[Sequence[int]], int]
) -> Walked:
    """Walk down from the anchor as long as a child carries the target's choice.

    Args:
        token_ids: of the nodes.
        parents: as in `tree.DraftTree`.
        choose: gives the target's token behind a path of rows, the anchor's 0 first; asked once a row.
    """
    nodes = {key: node for node, key in enumerate(zip(parents, token_ids, strict=True))}
    path, node = [0], ANCHOR
    while True:
        choice = choose(path)
        if (node, choice) not in nodes:
            return Walked(path, choice)
        node = nodes[node, choice]
        path.append(node + 1)


def reject_siblings(
    token_ids: Sequence[int],
    parents: Sequence[int],
    target: Tensor,
    proposal: Sequence[Tensor | None],
    chance: Chance,
) -> Walked:
    """Rejection over the children of each node, from the anchor down.

    Args:
        token_ids: of the nodes; siblings stand in the order in which they were drawn.
        parents: as in `tree.DraftTree`.
        target: p behind each row, [1 + nodes, vocabulary], the anchor's first.
        proposal: q [vocabulary] that the first child of each row was drawn from; None: its children are
            certain.
        chance: decides.
    """
    path = [0]
    while True:
        row = path[-1]
        p, q = target[row].double(), proposal[row]
        for node in [node for node, parent in enumerate(parents) if parent + 1 == row]:
            token = token_ids[node]
            if chance.accept(kept_with(p, q, token)):
                path.append(node + 1)
                break
            p, q = rejected(p, q, token)
        else:
            return Walked(path, chance.draw(p))


def kept_with(p: Tensor, q: Tensor | None, token: int) -> float:
    """Probability that a child is kept."""
    if q is None:
        return float(p[token])
    return min(1.0, float(p[token]) / float(q[token]))


def rejected(p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """Target and proposal of the next sibling once a child was not kept."""
    if q is None:
        return without(p, token), None
    residual = torch.clamp(p - q, min=0.0)
    left = residual / residual.sum() if float(residual.sum()) > 0.0 else p  # p equals q up to rounding
    return left, without(q, token)


def without(probabilities: Tensor, token: int) -> Tensor:
    """A distribution [vocabulary] that can no longer give `token`; itself if it gives nothing else."""
    left = probabilities.double().clone()
    left[token] = 0.0
    return left / left.sum() if float(left.sum()) > 0.0 else probabilities


def draw_siblings(q: Tensor, count: int, chance: Chance) -> list[int]:
    """Children drawn without replacement, in order; fewer where q gives fewer tokens.

    Args:
        q: distribution of the first, [vocabulary].
        count: of children, chosen before any is drawn.
        chance: decides.
    """
    found: list[int] = []
    for _ in range(min(count, int((q > 0).sum()))):
        found.append(chance.draw(q))
        q = without(q, found[-1])
    return found
