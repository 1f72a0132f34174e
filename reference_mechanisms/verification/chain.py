"""Verification of a chain of draft tokens: how many are kept, and which token follows them.

Greedy: the longest prefix that equals the target's own choices. Temperature above 0: rejection
sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318), exact for any draft
distribution. Both return one token more than they accept: the target's own at the first rejected
position (the correction), or behind the whole draft (the bonus token).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.sampling import Purpose, draw


class Verified(NamedTuple):
    """Outcome of one verify step."""

    accepted: int  # draft tokens kept: always a prefix of the draft
    next_token: int


def verify_choices(draft: Sequence[int], choices: Sequence[int]) -> Verified:
    """Keep the draft as far as it equals the target's own choices.

    At temperature 0 a choice is the argmax. Above 0 it is a draw from the target's distribution at
    that position: the choice does not depend on the draft, so the output is distributed as the
    target's, and equals that of autoregressive decoding with the same random numbers. For a draft
    without a distribution (n-gram) this is rejection sampling itself: a token is kept with the
    probability that the target gives it.

    Args:
        draft: k tokens.
        choices: k + 1 tokens, the i-th chosen with the first i draft tokens in front.

    >>> verify_choices([5, 7, 9], [5, 7, 8, 2])
    Verified(accepted=2, next_token=8)
    >>> verify_choices([5, 7, 9], [5, 7, 9, 2])
    Verified(accepted=3, next_token=2)
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted, choices[accepted])


def verify_sampled(
    draft: Sequence[int], target: Tensor, proposal: Tensor, uniform: Callable[[int, Purpose], float]
) -> Verified:
    """Rejection sampling of a draft that was drawn from known distributions.

    Token x at position i is kept with probability min(1, p_i(x) / q_i(x)); at the first rejection
    the next token is drawn from max(0, p_i - q_i), normalised; behind a fully kept draft from p_k.

    Args:
        draft: k tokens, the i-th drawn from proposal[i].
        target: p [k + 1, vocabulary].
        proposal: q [k, vocabulary].
        uniform: random number in [0, 1) for position i of the step and a purpose.
    """
    for index, token in enumerate(draft):
        p, q = target[index], proposal[index]
        if uniform(index, "accept") * float(q[token]) < float(p[token]):
            continue
        residual = torch.clamp(p - q, min=0.0)
        if not float(residual.sum()) > 0.0:  # p equals q up to rounding, so any draw from p is right
            residual = p
        return Verified(index, draw(residual, uniform(index, "residual")))
    return Verified(len(draft), draw(target[len(draft)], uniform(len(draft), "draw")))
