"""Where the target's own choices lead in a tree of drafts: the path that is then treated as a chain.

Nothing but the path counts: it is a draft that the target accepts in full, and goes through the same
decisions as a chain does. At temperature above 0 a choice is a draw from the target's distribution, with the
random number of its position: exact for any tree that does not hang on those draws (`tree_sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import Proposal
from reference_mechanisms.engine.choices import Place, settle
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.verification.tree_sampling import follow_choices
from reference_mechanisms.verification.walking import greedy_walk


class Followed(NamedTuple):
    """The accepted path of a tree."""

    proposal: Proposal  # its tokens, a chain
    path: list[int]  # its rows, the anchor's 0 first


def row_parents(proposal: Proposal) -> list[int]:
    """Parent of each row of a proposal, the anchor's row first, as in `Rows`."""
    if proposal.parents is None:
        return list(range(-1, len(proposal.token_ids)))
    return [-1, *(parent + 1 for parent in proposal.parents)]


def follow(place: Place, proposal: Proposal, logits: Tensor, plain: Sequence[int], rules: Rules) -> Followed:
    """Walk down from the anchor as long as a child carries the target's choice.

    Args:
        place: the request.
        proposal: a tree of n nodes.
        logits: raw, [1 + n, vocabulary].
        plain: argmax of each of those rows.
        rules: the decisions of a step.
    """
    sampling = place.request.sampling
    if sampling.greedy and not sampling.adjusts:
        path = _greedy(proposal, plain)
    else:
        path = _chosen(place, proposal, logits, plain, rules)
    return Followed(Proposal(tuple(proposal.token_ids[row - 1] for row in path[1:])), path)


def _greedy(proposal: Proposal, plain: Sequence[int]) -> list[int]:
    if not proposal.token_ids:
        return [0]
    ids, parents, choices = (
        torch.tensor([part]) for part in (proposal.token_ids, proposal.parents or (), plain)
    )
    walk = greedy_walk(ids, parents, choices, proposal.depth)
    path: list[int] = walk.path[0, : 1 + int(walk.counts[0])].tolist()
    return path


def _chosen(
    place: Place, proposal: Proposal, logits: Tensor, plain: Sequence[int], rules: Rules
) -> list[int]:
    """The walk where a choice hangs on what was emitted before it."""
    ids = proposal.token_ids

    def choose(path: Sequence[int]) -> int:
        here = place._replace(emitted=(*place.emitted, *(ids[row - 1] for row in path[1:])))
        row = slice(path[-1], path[-1] + 1)
        return settle(here, Proposal(()), logits[row], plain[row], rules).next_token

    return follow_choices(ids, proposal.parents or (), choose).path
