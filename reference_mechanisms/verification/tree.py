"""A tree of draft tokens behind one anchor: what is verified, and what each node sees.

Nodes are numbered in the order in which they would be given up last: a node's number is above its parent's,
so the first n nodes are a tree too. Where the tree is verified, the anchor is row 0 and node i is row i + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ANCHOR = -1  # parent of the first level
PADDING = -2  # parent of what is no node, in tensors of fixed shape


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Draft tokens, each behind its parent; a chain is a tree in which every node has one child.

    >>> tree = DraftTree((5, 6, 7), parents=(ANCHOR, ANCHOR, 0), log_probabilities=(-0.5, -1.5, -0.5))
    >>> tree.depths
    (1, 1, 2)
    >>> tree.path_log_probabilities
    (-0.5, -1.5, -1.0)
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]  # node in front of each, `ANCHOR` for the first level
    log_probabilities: tuple[float, ...]  # of each token behind its parent, as the drafter tells; <= 0

    def __post_init__(self) -> None:
        """Hold the order.

        Raises:
            ValueError: the fields are not of one length, a parent does not come before its child, two
                children of one node are the same token, or a probability is above 1 or no number.
        """
        if not len(self.token_ids) == len(self.parents) == len(self.log_probabilities):
            raise ValueError(
                f"{len(self.token_ids)} `token_ids`, {len(self.parents)} `parents` and "
                f"{len(self.log_probabilities)} `log_probabilities`: give one of each for every node"
            )
        seen: set[tuple[int, int]] = set()
        for node, (token, parent) in enumerate(zip(self.token_ids, self.parents, strict=True)):
            if not ANCHOR <= parent < node:
                raise ValueError(f"`parents`[{node}] is {parent}; a parent comes before its child")
            if (parent, token) in seen:
                raise ValueError(f"`token_ids`[{node}]: {token} stands twice behind node {parent}")
            seen.add((parent, token))
            if not self.log_probabilities[node] <= 0.0:
                raise ValueError(
                    f"`log_probabilities`[{node}] is {self.log_probabilities[node]}; it is at most 0"
                )

    def __len__(self) -> int:
        """Number of nodes, the anchor not among them."""
        return len(self.token_ids)

    @property
    def depths(self) -> tuple[int, ...]:
        """Steps from the anchor to each node, from 1."""
        return depths_of(self.parents)

    @property
    def path_log_probabilities(self) -> tuple[float, ...]:
        """Of each node's whole path from the anchor."""
        found: list[float] = []
        for parent, own in zip(self.parents, self.log_probabilities, strict=True):
            found.append(own if parent == ANCHOR else found[parent] + own)
        return tuple(found)

    @property
    def path_probabilities(self) -> tuple[float, ...]:
        """Of each node's whole path: what the node is worth in expected tokens."""
        return tuple(math.exp(one) for one in self.path_log_probabilities)

    def first(self, budget: int) -> DraftTree:
        """The tree of the first `budget` nodes."""
        return DraftTree(self.token_ids[:budget], self.parents[:budget], self.log_probabilities[:budget])

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first level down to `node`; none for the anchor."""
        found: list[int] = []
        while node != ANCHOR:
            found.append(node)
            node = self.parents[node]
        return tuple(reversed(found))


def chain(token_ids: Sequence[int], log_probabilities: Sequence[float]) -> DraftTree:
    """The tree of a chain."""
    return DraftTree(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)), tuple(log_probabilities))


def depths_of(parents: Sequence[int]) -> tuple[int, ...]:
    """Steps from the anchor to each node, from 1; parents come before their children."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ANCHOR else found[parent] + 1)
    return tuple(found)


def positions_of(parents: Sequence[int], start: int) -> tuple[int, ...]:
    """Position of each row, the anchor's first: siblings share one.

    Args:
        parents: of the nodes.
        start: position of the anchor.
    """
    return (start, *(start + depth for depth in depths_of(parents)))


def ancestor_mask(parents: Sequence[int]) -> Tensor:
    """Which rows each row sees: itself, and the rows on its way from the anchor.

    Args:
        parents: of the nodes.

    Returns:
        bool [1 + nodes, 1 + nodes], row 0 the anchor.
    """
    seen = torch.eye(1 + len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        seen[node + 1] |= seen[parent + 1]
    return seen
