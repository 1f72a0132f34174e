"""What the engine is asked for, and what it hands over step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters; names and meanings are those of OpenAI-compatible servers."""

    max_tokens: int
    temperature: float = 0.0  # 0 is greedy: argmax, lowest id on ties
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    seed: int = 0
    min_tokens: int = 0  # stop tokens cannot be chosen before this many tokens
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # beside the target's EOS ids
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 1 is off

    @property
    def greedy(self) -> bool:
        """Whether the output is a function of the prompt alone."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits depend on what was emitted before, other than through the target."""
        penalised = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(penalised) or self.min_tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to decode."""

    name: str  # for error messages
    prompt: tuple[int, ...]
    sampling: Sampling
    capture_logits: bool = False  # hash the raw target logits of every emitted position


class Event(NamedTuple):
    """Tokens of one request that have just become final.

    Counts are those after the cut at a stop or at max_tokens: tokens that were accepted but cut
    off are not counted. The bonus token is never among the accepted.
    """

    slot: int  # index of the request in its batch
    kind: Literal["prefill", "step"]
    token_ids: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    finish_reason: Literal["stop", "length"] | None = None  # on the last event only
    stop_reason: int | str | None = None  # the stop token, or the stop string
    text: str | None = None  # on the last event: visible text, cut at a stop string
    logits_sha256: str | None = None  # on the last event, where captured
