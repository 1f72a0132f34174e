"""Whether the emitted ids explain how a response ended: the stop, the reason, the length, the text.

Speculative engines commit several tokens at once and forget to look for the end inside them; the
ids alone show it. Pure: the text of ids comes from the decoder passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.records import Response, Sampling
from harness.results import StopFault

Decode = Callable[[Sequence[int]], str]
REPLACEMENT = "\ufffd"  # stands for a character whose bytes are not all there yet


class StopRules(NamedTuple):
    """What may end an output of this run."""

    sampling: Sampling
    stop_ids: frozenset[int]  # EOS ids (unless ignored) and the request's own
    vocab_size: int


class _Finding(NamedTuple):
    position: int | None  # index into the emitted ids
    fault: str


def stop_rules(sampling: Sampling, eos_token_ids: Sequence[int], vocab_size: int) -> StopRules:
    """The rules of a run on a target with these EOS ids."""
    eos = () if sampling.ignore_eos else eos_token_ids
    return StopRules(sampling, frozenset((*eos, *sampling.stop_token_ids)), vocab_size)


def check_end(response: Response, rules: StopRules, decode: Decode) -> StopFault | None:
    """The first thing about the end of a response that its ids do not explain; None when all is well.

    Args:
        response: a finished response.
        rules: of the run.
        decode: text of ids, special tokens left out.
    """
    for check in (_ids, _stop_string, _reason, _text):
        found = check(response, rules, decode)
        if found is not None:
            return StopFault(
                prompt_id=response.prompt_id,
                arm=response.arm,
                launch=response.launch,
                block=response.block,
                position=found.position,
                fault=found.fault,
            )
    return None


def _ids(response: Response, rules: StopRules, decode: Decode) -> _Finding | None:
    """Length and stop tokens."""
    del decode
    ids, sampling = response.token_ids, rules.sampling
    if not ids:
        return _Finding(None, "no token was emitted")
    for position, token in enumerate(ids):
        if not 0 <= token < rules.vocab_size:
            return _Finding(position, f"token {token} is not in the vocabulary of {rules.vocab_size}")
        if token in rules.stop_ids and position < sampling.min_tokens:
            return _Finding(
                position, f"stop token {token} is number {position + 1}, min_tokens is {sampling.min_tokens}"
            )
        if token in rules.stop_ids and position < len(ids) - 1:
            after = len(ids) - 1 - position
            return _Finding(
                position, f"stop token {token} is not the last: {after} tokens were emitted after it"
            )
    if len(ids) > sampling.max_tokens:
        return _Finding(
            sampling.max_tokens, f"{len(ids)} tokens were emitted, max_tokens is {sampling.max_tokens}"
        )
    return None


def _stop_string(response: Response, rules: StopRules, decode: Decode) -> _Finding | None:
    """A stop string that was complete before the last token."""
    ids = response.token_ids
    for stop in _due(ids, rules, decode):
        last = _completed_by(ids, stop, rules, decode)
        if last < len(ids) - 1:
            after = len(ids) - 1 - last
            return _Finding(
                last, f"stop string {stop!r} was complete here: {after} tokens were emitted after it"
            )
    return None


def _reason(response: Response, rules: StopRules, decode: Decode) -> _Finding | None:
    """The finish reason and what is said to have stopped it."""
    ids, why = response.token_ids, response.stop_reason
    by_token = ids[-1] in rules.stop_ids
    fault: str | None = None
    if response.finish_reason == "length":
        if by_token or _due(ids, rules, decode):
            fault = "the output ends with a stop, but its finish reason is 'length'"
        elif len(ids) != rules.sampling.max_tokens:
            fault = (
                f"finish reason 'length' after {len(ids)} tokens, max_tokens is {rules.sampling.max_tokens}"
            )
        elif why is not None:
            fault = f"finish reason 'length' with stop reason {why!r}"
    elif isinstance(why, int) and not (by_token and why == ids[-1]):
        fault = f"stop reason {why} is not a stop token that ends the output"
    elif isinstance(why, str) and why not in _allowed(ids, rules, decode):
        fault = f"stop reason {why!r} is not a stop string that the output completes"
    elif why is None and not by_token and not _allowed(ids, rules, decode):
        fault = "finish reason 'stop', but no stop token or stop string ends the output"
    return None if fault is None else _Finding(len(ids) - 1, fault)


def _text(response: Response, rules: StopRules, decode: Decode) -> _Finding | None:
    """The visible text against that of the ids, cut at the stop string."""
    if response.text is None:
        return None
    ids = response.token_ids
    wholes = [decode(ids), decode(ids[:-1])] if ids[-1] in rules.stop_ids else [decode(ids)]
    cuts = [min((w.find(s) for s in _allowed(ids, rules, decode) if s in w), default=len(w)) for w in wholes]
    texts = [whole[:cut] for whole, cut in zip(wholes, cuts, strict=True)]
    given = response.text.rstrip(REPLACEMENT)
    if any(given == text.rstrip(REPLACEMENT) for text in texts):
        return None
    position = next(
        (n for n in range(len(ids)) if not given.startswith(decode(ids[: n + 1]).rstrip(REPLACEMENT))),
        len(ids) - 1,
    )
    return _Finding(position, f"the text {_end(given)} is not that of the emitted ids, {_end(texts[0])}")


def _due(ids: Sequence[int], rules: StopRules, decode: Decode) -> tuple[str, ...]:
    """Stop strings that must have ended the output: they begin after the first `min_tokens` tokens."""
    if not rules.sampling.stop:
        return ()
    whole, start = decode(ids), _guarded(ids, rules, decode)
    return tuple(stop for stop in rules.sampling.stop if whole.find(stop, start) >= 0)


def _allowed(ids: Sequence[int], rules: StopRules, decode: Decode) -> tuple[str, ...]:
    """Stop strings that may have ended it: engines differ on one that begins before and ends after."""
    if not rules.sampling.stop:
        return ()
    whole, start = decode(ids), _guarded(ids, rules, decode)
    return tuple(s for s in rules.sampling.stop if whole.find(s, max(0, start - len(s))) >= 0)


def _guarded(ids: Sequence[int], rules: StopRules, decode: Decode) -> int:
    """Characters of the first `min_tokens` tokens, in which no stop string counts."""
    return len(decode(ids[: rules.sampling.min_tokens])) if rules.sampling.min_tokens else 0


def _completed_by(ids: Sequence[int], stop: str, rules: StopRules, decode: Decode) -> int:
    """Index of the token that completes a stop string which the whole text holds."""
    start = _guarded(ids, rules, decode)
    return next(n for n in range(len(ids)) if decode(ids[: n + 1]).find(stop, start) >= 0)


def _end(text: str) -> str:
    return repr(text if len(text) <= 40 else f"...{text[-40:]}")
