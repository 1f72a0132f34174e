"""What the target would emit at each verified position: argmax, or a draw from its distribution."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import Proposal
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request
from reference_mechanisms.sampling import Purpose, adjusted, distribution, uniform
from reference_mechanisms.verification.chain import Verified, verify_sampled

NO_NUMBERS = "the target computed logits that are no numbers; try another dtype"


class Place(NamedTuple):
    """One request at one step."""

    request: Request
    stop_ids: frozenset[int]
    emitted: Sequence[int]
    key: int  # of its random numbers


def argmax(logits: Tensor) -> list[int]:
    """Largest logit of each row of [rows, vocabulary], lowest id on ties.

    Raises:
        RequestError: a logit is not a number.
    """
    ids = logits.argmax(-1)
    best = logits.gather(-1, ids[:, None])
    if not bool(torch.isfinite(best).all()):
        raise RequestError(NO_NUMBERS)
    found: list[int] = ids.tolist()
    return found


def settle(place: Place, proposal: Proposal, logits: Tensor, plain: Sequence[int], rules: Rules) -> Verified:
    """Verify one request's draft.

    Args:
        place: the request.
        proposal: its draft of k tokens.
        logits: raw, [k + 1, vocabulary].
        plain: argmax of each of those rows.
        rules: the decisions of the step.
    """
    sampling, draft = place.request.sampling, proposal.token_ids
    if sampling.greedy and not sampling.adjusts:
        return rules.verify(draft, plain)
    before = [rules.history(place.emitted, draft[:index]) for index in range(len(draft) + 1)]
    prompt = place.request.prompt
    rows = torch.stack(
        [
            adjusted(row, prompt, seen, sampling, place.stop_ids) if sampling.adjusts else row.float()
            for row, seen in zip(logits, before, strict=True)
        ]
    )
    if sampling.greedy:
        return rules.verify(draft, argmax(rows))
    target = distribution(rows, sampling)
    if proposal.probabilities is not None:
        return verify_sampled(
            draft, target, proposal.probabilities, functools.partial(_uniform, place.key, len(place.emitted))
        )
    points = [uniform(place.key, len(seen), "draw") for seen in before]
    return rules.verify(draft, [rules.draw(p, point) for p, point in zip(target, points, strict=True)])


def _uniform(key: int, start: int, index: int, purpose: Purpose) -> float:
    return uniform(key, start + index, purpose)
