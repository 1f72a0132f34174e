"""A small finished run on a tiny real model, written to a folder as a run would leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from harness.codec import canonical_json
from harness.models import resolve_model
from harness.oracle.judge import Judged
from harness.oracle.session import Stock, open_stock, run_oracle
from harness.paths import RunFolder
from harness.plan import Job, ModelSpec, OracleSpec
from harness.progress import SilentReporter
from harness.protocols import Scorer
from harness.records import DecodeStep, Prompt, PromptLine, Response, Sampling
from harness.results import ArmResult, PlanRef, Report, SetSummary
from harness.stats.summary import summarise_arms
from harness.storage import read_lines, write_atomic, write_lines
from harness.tokenize import PromptTokenizer
from tests.harness.oracle.stock import job

MAX_TOKENS = 10
ORACLE = OracleSpec(calibration_prompts=3, calibration_tokens=8, verify_rows=4)
TEXTS = ("what is 2+2?", "name a colour", "say it twice")
SHARED = (  # fields of an arm that come from the statistics as they are
    "requests",
    "failed",
    "tokens",
    "tokens_per_second",
    "speedup",
    "speedup_geomean",
    "speedup_decode",
    "by_category",
    "slower_share",
    "verdict",
    "acceptance",
    "acceptance_by_set",
    "latency",
)
HELD_OUT = ("count to ten", "a word for red", "why", "who")


def prompts(texts: Sequence[str], set_name: str) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            prompt_id=f"{set_name}/{n}",
            set_name=set_name,
            category="chat",
            turns=(text,),
            row_sha256=f"{n:064x}",
        )
        for n, text in enumerate(texts)
    )


CALIBRATION = prompts(HELD_OUT, "held-out")


class TinyRun:
    """A tiny model, its stock, and an engine that emits what stock says, in steps of two tokens."""

    def __init__(self, model: Path, scorer: Scorer | None = None) -> None:
        self.model = model
        self.job: Job = job(Sampling(max_tokens=MAX_TOKENS), path=str(model), oracle=ORACLE)
        self.tokenizer = PromptTokenizer(resolve_model(ModelSpec(path=str(model))).path)
        loaded = open_stock(self.job)
        self.stock: Stock = loaded if scorer is None else loaded._replace(scorer=scorer)
        self.prompts = tuple(
            PromptLine(prompt=p, token_ids=self.tokenizer.encode(p)) for p in prompts(TEXTS, "own")
        )
        self._greedy = {line.prompt.prompt_id: self._decode(line) for line in self.prompts}

    def responses(self) -> list[Response]:
        measure = self.job.plan.measure
        places = [
            (launch, block, arm.name, line)
            for launch in range(measure.launches)
            for block in range(measure.blocks)
            for arm in self.job.plan.arms
            for line in self.prompts
        ]
        return [self._respond(*place, order=n) for n, place in enumerate(places)]

    def judge(self, responses: Sequence[Response], calibration: Sequence[Prompt] = CALIBRATION) -> Judged:
        return run_oracle(
            self.job, self.prompts, responses, calibration, self.tokenizer, SilentReporter(), self.stock
        )

    def write(self, root: Path) -> RunFolder:
        folder, responses = RunFolder(root), self.responses()
        write_lines(folder.prompts, self.prompts)
        write_lines(folder.responses, responses)
        write_atomic(folder.job, canonical_json(self.job))
        write_atomic(folder.report_json, canonical_json(self._report(responses)))
        return folder

    def _decode(self, line: PromptLine) -> list[int]:
        ids: list[int] = []
        for token, _ in islice(self.stock.scorer.greedy(line.token_ids), MAX_TOKENS):
            ids.append(token)
            if token in self.stock.eos_token_ids:
                break
        return ids

    def _respond(self, launch: int, block: int, arm: str, line: PromptLine, *, order: int) -> Response:
        ids = self._greedy[line.prompt.prompt_id]
        rest, width = len(ids) - 1, 2 if arm == "stock" else 1
        steps: list[DecodeStep] = []
        while rest:
            emitted = min(width, rest)
            steps.append(
                DecodeStep(
                    num_draft_tokens=width - 1,
                    num_accepted_tokens=emitted - 1,
                    num_emitted_tokens=emitted,
                    at_ns=1000 * (len(steps) + 2),
                )
            )
            rest -= emitted
        return Response(
            prompt_id=line.prompt.prompt_id,
            arm=arm,
            launch=launch,
            block=block,
            order=order,
            status="ok",
            prompt_tokens=len(line.token_ids),
            started_at=1.0 + order,
            token_ids=tuple(ids),
            text=self.tokenizer.decode(ids),
            finish_reason="stop" if ids[-1] in self.stock.eos_token_ids else "length",
            prefill_tokens=1,
            first_token_ns=1000,
            end_ns=1000 * (len(steps) + 1) + order,
            steps=tuple(steps),
            logits_sha256=f"hash of {line.prompt.prompt_id}",
        )

    def _report(self, responses: Sequence[Response]) -> Report:
        plan = self.job.plan
        judged = self.judge(responses)
        speeds = summarise_arms(responses, [line.prompt for line in self.prompts], plan)
        arms = []
        for arm in plan.arms:
            speed = speeds.arms[arm.name]
            arms.append(
                ArmResult(
                    name=arm.name,
                    kind=arm.kind,
                    backend=arm.backend,
                    params=arm.params,
                    acceptance_length=None if speed.acceptance is None else speed.acceptance.length,
                    losslessness=judged.arms[arm.name],
                    **{field: getattr(speed, field) for field in SHARED},
                )
            )
        summary = SetSummary(
            name="own",
            split="public",
            source="file",
            licence="MIT",
            rows=3,
            drawn=3,
            raw_sha256="",
            prompts_sha256="",
            merkle_root="",
        )
        return Report(
            schema_version=1,
            name=plan.name,
            label=plan.label,
            status="valid",
            reasons=(),
            division=plan.effective_division,
            plan=PlanRef(name=plan.name, hash=self.job.hash),
            job=self.job,
            command=(),
            created_at="2026-01-01T00:00:00+00:00",
            harness={},
            environment={},
            models={},
            sets=(summary,),
            backends={},
            arms=tuple(arms),
            losslessness=judged.overall,
            audits=(),
            timeline=(),
            telemetry={},
            warnings=(),
            files={},
        )


def edit_report(folder: RunFolder, change: Callable[[dict[str, Any]], None]) -> None:
    """Change report.json as a forger would."""
    plain = msgspec.json.decode(folder.report_json.read_bytes())
    change(plain)
    write_atomic(folder.report_json, msgspec.json.encode(plain, order="sorted"))


def edit_response(folder: RunFolder, index: int, **fields: Any) -> Response:
    """Change one line of responses.jsonl."""
    lines = list(read_lines(folder.responses, Response))
    lines[index] = msgspec.structs.replace(lines[index], **fields)
    write_lines(folder.responses, lines)
    return lines[index]
