"""Stock with known logits, and responses, for the tests of the rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.oracle.force import Forced, force
from harness.oracle.judge import Case, key_of
from harness.oracle.margin import StockBaseline
from harness.oracle.stops import StopRules
from harness.plan import ArmSpec, Deployment, Job, ModelSpec, OracleSpec, Plan, SetSpec
from harness.protocols import ForcedPosition
from harness.records import DecodeStep, Prompt, PromptLine, Response, Sampling
from harness.results import Margin, StockNoise, StopFault

Array = npt.NDArray[np.float32]
VOCAB = 8
EOS = 7


class HashStock:
    """Logits are a hash of the whole context; `noise` moves them by a hash of context and shape.

    Tokens from `live` on are far below the others.
    """

    def __init__(
        self, *, vocab: int = VOCAB, noise: float = 0.0, chunk: int = 3, live: int | None = None
    ) -> None:
        self.vocab, self.noise, self.chunk = vocab, noise, chunk
        self.live = vocab if live is None else live
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...], int | None]] = []

    def describe(self) -> dict[str, Any]:
        return {"implementation": "hash stock", "noise": self.noise}

    def row(self, context: Sequence[int], rows: int | None = 1) -> Array:
        clean = self._draw(f"{tuple(context)}") * 4.0
        clean[self.live :] -= 100.0
        shape = self._draw(f"{tuple(context)}/{rows}")
        moved = clean if rows == 1 else clean + self.noise * (2.0 * shape - 1.0)
        return moved.astype(np.float32)

    def logits(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], rows: int | None
    ) -> Iterator[Array]:
        self.calls.append((tuple(prompt_token_ids), tuple(token_ids), rows))
        found = [self.row((*prompt_token_ids, *token_ids[:n]), rows) for n in range(len(token_ids))]
        for start in range(0, len(found), self.chunk):
            yield np.stack(found[start : start + self.chunk])

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, Array]]:
        ids = list(prompt_token_ids)
        while True:
            row = self.row(ids)
            ids.append(int(row.argmax()))
            yield ids[-1], row

    def _draw(self, key: str) -> npt.NDArray[np.float64]:
        rng = random.Random(key)  # noqa: S311 - a hash, not a secret
        return np.array([rng.random() for _ in range(self.vocab)])


def position(
    token: int, top: tuple[int, float], runner_up: tuple[int, float], logit: float
) -> ForcedPosition:
    return ForcedPosition(
        token_id=token,
        top_id=top[0],
        runner_up_id=runner_up[0],
        top_logit=top[1],
        runner_up_logit=runner_up[1],
        token_logit=logit,
    )


def agreed(token: int) -> ForcedPosition:
    return position(token, (token, 5.0), ((token + 1) % VOCAB, 2.0), 5.0)


def second(token: int, gap: float) -> ForcedPosition:
    return position(token, ((token + 1) % VOCAB, 5.0), (token, 5.0 - gap), 5.0 - gap)


def third(token: int, gap: float) -> ForcedPosition:
    return position(token, ((token + 1) % VOCAB, 5.0), ((token + 2) % VOCAB, 5.0 - gap / 2), 5.0 - gap)


def response(
    ids: Sequence[int],
    *,
    arm: str = "ar",
    prompt: str = "own/p0",
    launch: int = 0,
    block: int = 0,
    **more: Any,
) -> Response:
    fields: dict[str, Any] = {
        "prompt_id": prompt,
        "arm": arm,
        "launch": launch,
        "block": block,
        "order": 0,
        "status": "ok",
        "prompt_tokens": 3,
        "started_at": 1.0,
        "token_ids": tuple(ids),
        "finish_reason": "length",
        "prefill_tokens": 1,
        "first_token_ns": 10,
        "end_ns": 20 + len(ids),
        "steps": tuple(
            DecodeStep(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1, at_ns=20)
            for _ in range(len(ids) - 1)
        ),
    }
    return Response(**(fields | more))


def failed(arm: str = "ar", prompt: str = "own/p0") -> Response:
    return Response(
        prompt_id=prompt,
        arm=arm,
        launch=0,
        block=0,
        order=0,
        status="failed",
        prompt_tokens=3,
        started_at=1.0,
        error="refused",
    )


def job(
    sampling: Sampling | None = None,
    arms: Sequence[str] = ("ar", "stock"),
    *,
    path: str = "nowhere",
    oracle: OracleSpec | None = None,
    label: str = "full",
    **more: Any,
) -> Job:
    kinds = {"ar": "ar", "null": "null", "replay": "replay"}
    return Job(
        plan=Plan(
            schema="plan/1",
            name="judged",
            deployment="tiny",
            label=label,  # type: ignore[arg-type]
            sets=(SetSpec(name="own", count=3),),
            arms=tuple(
                ArmSpec(name=name, kind=kinds.get(name, "stock"), backend="a:b")  # type: ignore[arg-type]
                for name in arms
            ),
            sampling=sampling or Sampling(max_tokens=4),
            oracle=oracle or OracleSpec(),
            **more,
        ),
        deployment=Deployment(
            schema="deployment/1",
            name="tiny",
            target=ModelSpec(path=path, dtype="float32"),
            device="cpu",
            context_length=128,
            threads=1,
        ),
    )


def baseline(
    margin: float = 0.5, *, flips: int = 2, positions: int = 200, blind: float = 0.01
) -> StockBaseline:
    return StockBaseline(
        Margin(
            value=margin,
            quantile=margin / 2,
            largest=margin / 2,
            positions=positions,
            exceedance_bound=3 / positions,
            blind_share=blind,
            median_gap=2.0,
            shapes=("one-token steps", "8-row steps", "prefill"),
            prompts=4,
        ),
        StockNoise(disagreements=flips, positions=positions),
    )


def case(
    responses: Sequence[Response],
    views: Mapping[tuple[int, ...], Sequence[ForcedPosition]],
    *,
    run: Job | None = None,
    noise: StockBaseline | None = None,
    faults: Sequence[StopFault] = (),
) -> Case:
    """A case in which every sequence of ids not named in `views` agrees with stock."""
    forced = {}
    for one in responses:
        if one.status == "ok":
            seen = views.get(one.token_ids) or [agreed(token) for token in one.token_ids]
            forced[key_of(one)] = Forced(tuple(seen), ())
    return Case(
        job=run or job(),
        responses=responses,
        forced=forced,
        baseline=noise or baseline(),
        stop_faults=faults,
        token_text=lambda token: f"<{token}>",
        scorer={"implementation": "by hand"},
    )


def force_with(
    stock: HashStock, prompt: Sequence[int], ids: Sequence[int], sampling: Sampling, margin: float = 0.0
) -> Forced:
    rules = StopRules(sampling, frozenset({EOS}), stock.vocab)
    return force(stock.logits(prompt, ids, None), prompt, ids, rules, margin)


def greedy_ids(stock: HashStock, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    taken: list[int] = []
    for token, _ in stock.greedy(prompt):
        taken.append(token)
        if len(taken) == count:
            break
    return tuple(taken)


def prompt_line(name: str, ids: Sequence[int], text: str = "hello") -> PromptLine:
    return PromptLine(
        prompt=Prompt(prompt_id=name, set_name="own", category="chat", turns=(text,), row_sha256="0" * 64),
        token_ids=tuple(ids),
    )


Decode = Callable[[Sequence[int]], str]


def letters(ids: Sequence[int]) -> str:
    """Text of ids for tests without a tokenizer: 0 is "a", 1 is "b", ...; EOS is not shown."""
    return "".join(chr(ord("a") + token) for token in ids if token != EOS)
