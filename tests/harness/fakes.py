"""A backend, a clock and records with known answers, for the tests of the instrument."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.errors import BackendError
from harness.plan import ArmSpec, Deployment, Job, MeasureSpec, ModelSpec, Plan, SetSpec
from harness.records import DecodeRequest, Prompt, PromptLine, Sampling, StepEvent


class FakeClock:
    """Goes on by a fixed amount at every look."""

    def __init__(self, tick_ns: int = 1000) -> None:
        self.now = 0
        self.tick_ns = tick_ns

    def monotonic_ns(self) -> int:
        self.now += self.tick_ns
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now / 1e9


class ScriptedSession:
    """Emits 10, 11, 12 ... up to max_tokens; `drafts` tokens are accepted a step.

    Arm parameters: drafts (int), fail_on (prompt id that raises), die_on (prompt id that kills the
    process, once per marker file), device (what describe() says).
    """

    def __init__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> None:
        self.device = str(next((a.params["device"] for a in arms if "device" in a.params), deployment.device))
        self.params = {arm.name: arm.params for arm in arms}
        self.prepared: list[str] = []

    def describe(self) -> dict[str, Any]:
        return {"engine": "scripted", "device": self.device}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        self.prepared.append(arm)

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        params = self.params[arm]
        for index, request in enumerate(requests):
            self._misbehave(params, request)
            yield from self._one(index, request, int(params.get("drafts", 0)))

    def close(self) -> None:
        pass

    def _one(self, index: int, request: DecodeRequest, drafts: int) -> Iterator[StepEvent]:
        left = list(range(10, 10 + request.sampling.max_tokens))
        first = left.pop(0)
        yield StepEvent(
            index=index,
            kind="prefill",
            token_ids=(first,),
            finish_reason=None if left else "length",
        )
        while left:
            block, left = left[: drafts + 1], left[drafts + 1 :]
            yield StepEvent(
                index=index,
                kind="step",
                token_ids=tuple(block),
                num_draft_tokens=drafts,
                num_accepted_tokens=min(drafts, len(block)),
                finish_reason=None if left else "length",
            )

    def _misbehave(self, params: dict[str, Any], request: DecodeRequest) -> None:
        if request.request_id == params.get("fail_on"):
            raise BackendError(f"{request.request_id} refused on purpose")
        marker = params.get("die_marker")
        if request.request_id == params.get("die_on") and marker and not Path(str(marker)).exists():
            Path(str(marker)).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> ScriptedSession:
    """The factory the plans of the tests name."""
    return ScriptedSession(deployment, arms)


BACKEND = "tests.harness.fakes:open_session"


def make_job(arms: Sequence[ArmSpec] | None = None, *, max_tokens: int = 5, **measure: Any) -> Job:
    """A small job on the scripted backend."""
    chosen = arms or (
        ArmSpec(name="ar", kind="ar", backend=BACKEND),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafts": 2}),
    )
    settings = {"launches": 1, "blocks": 2, "warmup_prompts": 1} | measure
    return Job(
        plan=Plan(
            schema="plan/1",
            name="scripted",
            deployment="scripted",
            label="smoke",
            sets=(SetSpec(name="own", count=3),),
            arms=tuple(chosen),
            sampling=Sampling(max_tokens=max_tokens),
            measure=MeasureSpec(**settings),
        ),
        deployment=Deployment(
            schema="deployment/1",
            name="scripted",
            target=ModelSpec(path="nowhere"),
            device="cpu",
            context_length=64,
        ),
    )


def make_prompts(count: int = 3) -> tuple[PromptLine, ...]:
    """Prompts p0, p1, ..."""
    return tuple(
        PromptLine(
            prompt=Prompt(
                prompt_id=f"own/p{n}",
                set_name="own",
                category="chat",
                turns=(f"prompt {n}",),
                row_sha256=f"{n:064x}",
            ),
            token_ids=(1, 2, 3 + n),
        )
        for n in range(count)
    )
