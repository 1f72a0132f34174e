"""The decisions of a step that correctness hangs on, each a function of its own.

`Rules()` is the engine. Tests replace single ones with the field's known mistakes and hold that the
oracle sees every one of them; nothing else has a reason to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from reference_mechanisms.engine.stops import Cut, Decode, Ending, cut
from reference_mechanisms.request import Sampling
from reference_mechanisms.sampling import draw, request_key
from reference_mechanisms.verification.chain import Verified, verify_choices


def block_of(draft: Sequence[int], verified: Verified) -> tuple[int, ...]:
    """Tokens a step emits before the cut: the accepted prefix, then the target's own token."""
    return (*draft[: verified.accepted], verified.next_token)


def accepted_after(verified: Verified, kept: Cut) -> int:
    """Accepted draft tokens that were emitted; the bonus token and what was cut off do not count."""
    return min(verified.accepted, len(kept.token_ids))


def rows_to_keep(drafted: int, verified: Verified) -> int:
    """Cached rows that stay: the anchor and the accepted draft; rejected ones are overwritten."""
    del drafted
    return 1 + verified.accepted


def history(emitted: Sequence[int], draft_prefix: Sequence[int]) -> tuple[int, ...]:
    """Output in front of a verified position: for penalties, min_tokens and random numbers."""
    return (*emitted, *draft_prefix)


def draft_limit(emitted: int, max_tokens: int) -> int:
    """Most draft tokens that can still be emitted; the step's own token takes the last place."""
    return max_tokens - emitted - 1


def key_of(sampling: Sampling, prompt: Sequence[int], slot: int) -> int:
    """Key of a request's random numbers; its place in the batch has no part in it."""
    del slot
    return request_key(sampling.seed, prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One verify step, decision by decision."""

    limit: Callable[[int, int], int] = draft_limit
    history: Callable[[Sequence[int], Sequence[int]], Sequence[int]] = history
    draw: Callable[[Tensor, float], int] = draw
    verify: Callable[[Sequence[int], Sequence[int]], Verified] = verify_choices
    block: Callable[[Sequence[int], Verified], tuple[int, ...]] = block_of
    cut: Callable[[Sequence[int], Sequence[int], Ending, Decode], Cut] = cut
    accepted: Callable[[Verified, Cut], int] = accepted_after
    keep: Callable[[int, Verified], int] = rows_to_keep
    key: Callable[[Sampling, Sequence[int], int], int] = key_of

    @property
    def plain_greedy(self) -> bool:
        """Whether a greedy step decides as the device program of `static_step.py` does."""
        own = (self.limit, self.verify, self.block, self.keep)
        return own == (draft_limit, verify_choices, block_of, rows_to_keep)
