"""Where an output ends: the cut inside a block of tokens that became final together.

A verify step may emit a stop in the middle of its block. Token by token, in this order: a stop
token, a stop string, the length. What lies behind the cut was never emitted, and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from reference_mechanisms.request import Sampling

Decode = Callable[[Sequence[int]], str]  # visible text of token ids, special tokens left out


class Ending(NamedTuple):
    """What may end the output of one request."""

    stop_ids: frozenset[int]  # EOS ids (unless ignored) and the request's own
    stop: tuple[str, ...]
    min_tokens: int
    max_tokens: int


class Cut(NamedTuple):
    """The part of a block that is emitted, and why the output ends there, if it does."""

    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None


def ending_of(sampling: Sampling, eos_ids: Sequence[int]) -> Ending:
    """What ends a request on a target with these EOS ids."""
    eos = () if sampling.ignore_eos else tuple(eos_ids)
    return Ending(
        frozenset((*eos, *sampling.stop_token_ids)), sampling.stop, sampling.min_tokens, sampling.max_tokens
    )


def cut(before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode) -> Cut:
    """Cut a block at the first token that ends the output.

    Args:
        before: tokens emitted so far.
        block: tokens the step would emit.
        ending: what ends this request.
        decode: text of ids.
    """
    completes = _stop_strings(before, block, ending, decode)
    for index, token in enumerate(block):
        emitted, kept = len(before) + index + 1, tuple(block[: index + 1])
        if token in ending.stop_ids and emitted > ending.min_tokens:
            return Cut(kept, "stop", token)
        if index in completes:
            return Cut(kept, "stop", completes[index])
        if emitted >= ending.max_tokens:
            return Cut(kept, "length")
    return Cut(tuple(block))


def visible_text(token_ids: Sequence[int], ending: Ending, decode: Decode) -> str:
    """Text of a finished output, cut where a stop string begins."""
    ids = token_ids[:-1] if token_ids and token_ids[-1] in ending.stop_ids else token_ids
    text = decode(ids)
    found = _first_stop(text, _guarded(ids, ending, decode), ending.stop)
    return text if found is None else text[: found[0]]


def _stop_strings(
    before: Sequence[int], block: Sequence[int], ending: Ending, decode: Decode
) -> dict[int, str]:
    """Index into the block of the token that completes a stop string, with that string; at most one."""
    if not ending.stop:
        return {}
    whole = [*before, *block]
    guard = _guarded(whole, ending, decode)
    if _first_stop(decode(whole), guard, ending.stop) is None:
        return {}
    for index in range(len(block)):
        found = _first_stop(decode(whole[: len(before) + index + 1]), guard, ending.stop)
        if found is not None:
            return {index: found[1]}
    return {}


def _first_stop(text: str, start: int, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that begins first, and where."""
    found = [(text.find(stop, start), stop) for stop in stops]
    return min(((at, stop) for at, stop in found if at >= 0), default=None)


def _guarded(ids: Sequence[int], ending: Ending, decode: Decode) -> int:
    """Characters of the first `min_tokens` tokens, in which no stop string counts."""
    return len(decode(ids[: ending.min_tokens])) if ending.min_tokens else 0
