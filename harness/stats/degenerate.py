"""Outputs that repeat themselves: any drafter is right about them, so they say little about a drafter.

Known by the ids alone, by two marks. The end is a loop: the last 64 tokens, with or without a token behind
them that stopped it, are a period of at most 32 tokens over and over. Or the whole hardly says anything
new: of its runs of four tokens fewer than half are distinct, as where a loop counts while it turns.
"""

from __future__ import annotations

from collections.abc import Sequence

TAIL = 64  # tokens; a shorter output is never degenerate
LONGEST_PERIOD = 32  # at least twice in the tail
RUN = 4
LEAST_DISTINCT = 0.5


def degenerate(token_ids: Sequence[int]) -> bool:
    """Whether an output is a repetition.

    Args:
        token_ids: the emitted ids, a stop token included.
    """
    return _loops(token_ids) or _loops(token_ids[:-1]) or _says_little(token_ids)


def _loops(token_ids: Sequence[int]) -> bool:
    tail = list(token_ids[-TAIL:])
    if len(tail) < TAIL:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, LONGEST_PERIOD + 1))


def _says_little(token_ids: Sequence[int]) -> bool:
    if len(token_ids) < TAIL:
        return False
    runs = [tuple(token_ids[start : start + RUN]) for start in range(len(token_ids) - RUN + 1)]
    return len(set(runs)) < LEAST_DISTINCT * len(runs)
