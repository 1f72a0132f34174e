"""Pairing: which time of an arm stands against which time of the baseline.

The unit of pairing is what a user waits for. One request at a time: the prompt, in one block of
one launch. Requests decoded together (`measure.batch` > 1): the batch, because its members share
the machine and its time passes once. A pair with a failed or missing side is left out on both
sides, whatever the other side's time was, and counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.errors import DataError
from harness.records import Response


class Cost(NamedTuple):
    """What one unit of work took in one arm."""

    total_ns: int  # from sending the request (or batch) to its last token
    decode_ns: int  # from its first token to its last
    tokens: int  # emitted
    decode_tokens: int  # emitted after the first token of each request


class Pair(NamedTuple):
    """The same unit of work in both arms, in the same block of the same launch."""

    launch: int
    block: int
    prompts: tuple[str, ...]  # prompt ids, sorted; one unless the unit is a batch
    baseline: Cost
    arm: Cost


class Pairing(NamedTuple):
    """All complete pairs, by launch, block and prompts, and how many were lost."""

    pairs: tuple[Pair, ...]
    lost: int


def request_cost(response: Response) -> Cost | None:
    """Cost of one request; None when it failed."""
    if response.status != "ok" or response.end_ns is None or response.first_token_ns is None:
        return None
    tokens = len(response.token_ids)
    return Cost(response.end_ns, response.end_ns - response.first_token_ns, tokens, max(tokens - 1, 0))


def batch_cost(responses: Sequence[Response]) -> Cost | None:
    """Cost of requests decoded together: wall time once, tokens of all; None when any failed.

    The decode time starts at the batch's first token, so that no decoding is left out when a
    server prefills its requests one after another.
    """
    costs = [cost for response in responses if (cost := request_cost(response)) is not None]
    if not costs or len(costs) < len(responses):
        return None
    sent = [response.sent_ns for response in responses]  # since the batch began; 0 in an engine
    end = max(at + cost.total_ns for at, cost in zip(sent, costs, strict=True))
    first = min(at + cost.total_ns - cost.decode_ns for at, cost in zip(sent, costs, strict=True))
    return Cost(end, end - first, sum(c.tokens for c in costs), sum(c.decode_tokens for c in costs))


def batches(responses: Iterable[Response]) -> tuple[tuple[Response, ...], ...]:
    """Responses of one arm, grouped into the batches they were decoded in (launch and order)."""
    groups: dict[tuple[int, int], list[Response]] = {}
    for response in responses:
        groups.setdefault((response.launch, response.order), []).append(response)
    return tuple(tuple(groups[key]) for key in sorted(groups))


def pair_requests(baseline: Sequence[Response], arm: Sequence[Response]) -> Pairing:
    """Pair request by request: launch, block, prompt.

    In a batched run this compares latencies: each request's own time since its batch was sent.

    Raises:
        DataError: an arm holds two responses to one prompt in one block.
    """
    return _matched(
        _by_key([(r,) for r in baseline], lambda group: request_cost(group[0])),
        _by_key([(r,) for r in arm], lambda group: request_cost(group[0])),
    )


def pair_batches(baseline: Sequence[Response], arm: Sequence[Response]) -> Pairing:
    """Pair batch by batch: launch, block and the set of prompts decoded together.

    Raises:
        DataError: an arm holds two equal batches in one block.
    """
    return _matched(_by_key(batches(baseline), batch_cost), _by_key(batches(arm), batch_cost))


def _by_key(
    groups: Iterable[tuple[Response, ...]], cost_of: Callable[[tuple[Response, ...]], Cost | None]
) -> dict[tuple[int, int, tuple[str, ...]], Cost | None]:
    costs: dict[tuple[int, int, tuple[str, ...]], Cost | None] = {}
    for group in groups:
        first = group[0]
        key = (first.launch, first.block, tuple(sorted(response.prompt_id for response in group)))
        if key in costs:
            raise DataError(
                f"arm {first.arm} holds two responses to {', '.join(key[2])} in launch {first.launch} "
                f"block {first.block}; remove the repeated lines from responses.jsonl"
            )
        costs[key] = cost_of(group)
    return costs


def _matched(
    baseline: Mapping[tuple[int, int, tuple[str, ...]], Cost | None],
    arm: Mapping[tuple[int, int, tuple[str, ...]], Cost | None],
) -> Pairing:
    keys = sorted(baseline.keys() | arm.keys())
    pairs = []
    for launch, block, prompts in keys:
        one, other = baseline.get((launch, block, prompts)), arm.get((launch, block, prompts))
        if one is not None and other is not None:
            pairs.append(Pair(launch, block, prompts, one, other))
    return Pairing(tuple(pairs), len(keys) - len(pairs))
