"""A host whose arms have known speeds: whole runs as records, no process, no clock."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent_loop.assembling import Folders
from agent_loop.campaign import ExplorerSpec, Loop, LoopPlan, Rules, Shape
from agent_loop.controller.controlling import Controller, State
from agent_loop.controller.database import Database
from agent_loop.controller.trials import Bench
from agent_loop.executors.protocol import ConfirmRequest, TrialFailed
from agent_loop.explorers.tuning import tune
from agent_loop.protocols import Brief, Knob, Recalled, Space
from agent_loop.records import Budget, Candidate, Verdict
from harness.oracle.stored import StoredRun
from harness.plan import (
    ArmSpec,
    Deployment,
    Job,
    MeasureSpec,
    ModelSpec,
    OracleSpec,
    Param,
    Plan,
    SetSpec,
    StatsSpec,
)
from harness.records import DecodeStep, Response, Sampling
from harness.results import (
    ArmLosslessness,
    ArmResult,
    Audit,
    BlockSpan,
    Latency,
    Losslessness,
    PlanRef,
    Report,
)
from harness.stats.sign_flip import launch_log_ratios, sign_flip_p
from harness.stats.speedup import compare_arms

BACKEND = "somewhere:open_session"
SECONDS = 2.0  # of stock's response
TOKENS = 16
Speed = Callable[[Mapping[str, Param]], float]


def make_loop(**fields: Any) -> Loop:
    """A campaign on one knob; `width` 2 is stock's."""
    arm = ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"width": 2})
    plan = Plan(
        schema="plan/1",
        name="made",
        deployment="made",
        label="smoke",
        sets=(SetSpec(name="own", count=4),),
        arms=(arm,),
        sampling=Sampling(max_tokens=TOKENS),
        measure=MeasureSpec(launches=1, blocks=1),
        oracle=OracleSpec(),
        stats=StatsSpec(resamples=100),
    )
    deployment = Deployment(
        schema="deployment/1",
        name="made",
        target=ModelSpec(path="nowhere"),
        device="cpu",
        context_length=256,
    )
    usual: dict[str, Any] = {
        "explorers": (ExplorerSpec(name="offline", kind="offline", batch=3, budget=Budget(trials=8)),),
        "spaces": (
            Space(mechanism="width", backend=BACKEND, knobs=(Knob(name="width", values=(2, 3, 4, 6)),)),
        ),
        "rules": Rules(confirm_slots=2, launch_blocks=6),
        "screen": Shape(prompts=3),
        "measure": Shape(prompts=4, launches=3),
    }
    return Loop(
        LoopPlan(schema="loop/1", name="made", plan="made", **(usual | fields)),
        Job(plan=plan, deployment=deployment),
    )


class Host:
    """See `agent_loop.executors.protocol.Executor`; state lies in files, as an executor's must.

    Args:
        speed: speedup over stock of an arm with these parameters.
        noise: standard deviation of the log time of an arm in a launch.
        lossy: whether an arm with these parameters emits a token that is not stock's.
        late: whether its first token is late, on public or on unseen rows.
        delays: what becomes of a control's delay; 1 on an honest host.
    """

    def __init__(
        self,
        root: Path,
        speed: Speed,
        *,
        noise: float = 0.01,
        lossy: Callable[[Mapping[str, Param]], bool] = lambda _: False,
        refuses: Callable[[Mapping[str, Param]], bool] = lambda _: False,
        fails: Callable[[Mapping[str, Param]], bool] = lambda _: False,
        late: Callable[[Mapping[str, Param], bool], bool] = lambda _, __: False,
        seed: int = 0,
        delays: float = 1.0,
    ) -> None:
        self.root = root
        self.delays = delays
        self.speed, self.lossy, self.refuses, self.fails = speed, lossy, refuses, fails
        self.late = late
        self.noise = noise
        self.seed = seed
        self.deny: Mapping[str, Param] | None = None  # parameters of an arm that no unseen row likes
        self.runs: list[tuple[str, int]] = []

    def start_unseen(self, job: Job, folder: Path, controller: Path, options: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "campaign.json").write_text(json.dumps({"campaign_id": "made"}))

    def measure(self, job: Job, folder: Path) -> StoredRun:
        self.runs.append((folder.name, len(job.plan.arms)))
        for arm in job.plan.arms:
            if self.refuses(arm.params):
                raise TrialFailed(f"specpilot-harness: launch 0: arms[{arm.name}].params: no such width", 3)
        stage = folder.name.partition("-")[0]  # the rest of the name hangs on where the rows lie
        return self.run(job, f"{self.seed}/{stage}/{[arm.params for arm in job.plan.arms]}")

    def confirm(self, request: ConfirmRequest, folder: Path, unseen: Path, controller: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        with (self.root / "shards").open("a") as file:
            file.write(f"{folder.name}\n")
        run = self._unseen(request, folder.name)
        line = self._decide(run)
        (folder / "said.txt").write_text(line)
        (self.root / "evidence.json").write_bytes(msgspec.json.encode([request.params, folder.name]))
        return line

    def answer(self, folder: Path) -> str | None:
        path = folder / "said.txt"
        return path.read_text() if path.is_file() else None

    def evidence(self, request: ConfirmRequest, unseen: Path, controller: Path) -> StoredRun | None:
        path = self.root / "evidence.json"
        if not path.is_file():
            return None
        _, name = json.loads(path.read_bytes())
        return self._unseen(request, name)

    def _unseen(self, request: ConfirmRequest, name: str) -> StoredRun:
        job = make_loop().job
        arm = ArmSpec(name="candidate", kind="candidate", backend=request.backend, params=request.params)
        plan = msgspec.structs.replace(
            job.plan,
            arms=(*job.plan.arms, arm),
            measure=MeasureSpec(launches=6, blocks=1),
            sets=(SetSpec(name="unseen", count=4),),
        )
        return self.run(msgspec.structs.replace(job, plan=plan), f"{self.seed}/{name}")

    def _decide(self, run: StoredRun) -> str:
        """The rule of a sealed campaign at level 0.025."""
        arm = next(one for one in run.report.arms if one.name == "candidate")
        if arm.losslessness is not None and arm.losslessness.stock_verdict == "violated":
            return "reject: violated"
        if arm.params == self.deny:
            return "reject: not-faster"
        ratios = launch_log_ratios(run.report.timeline, "stock", "candidate")
        good = arm.speedup is not None and arm.speedup.low > 1.0 and sign_flip_p(ratios) <= 0.025
        return "accept" if good else "reject: not-faster"

    def run(self, job: Job, seed: str) -> StoredRun:
        """A run of these arms with launch noise."""
        rng = random.Random(seed)  # noqa: S311 - noise, not a secret
        row = "u" if job.plan.sets[0].name == "unseen" else "p"
        prompts = [f"own/{row}{n}" for n in range(sum(spec.count for spec in job.plan.sets))]
        responses = []
        for launch in range(job.plan.measure.launches):
            factors = {
                arm.name: (1.0 if arm.kind == "stock" else 1.0 / self.speed(arm.params))
                * (1.0 + float(arm.params.get("delay", 0.0)) * self.delays)
                * 2.718281828 ** rng.gauss(0.0, self.noise)
                for arm in job.plan.arms
            }
            for order, prompt in enumerate(prompts):
                for arm in job.plan.arms:
                    took = SECONDS * factors[arm.name] * (1.0 + 0.1 * order)
                    failed = self.fails(arm.params) and order == 0
                    responses.append(_response(prompt, arm.name, launch, order, None if failed else took))
        return StoredRun(job, (), tuple(responses), self._report(job, responses, prompts))

    def _report(self, job: Job, responses: list[Response], prompts: list[str]) -> Report:
        stock = [r for r in responses if r.arm == "stock"]
        arms, reasons = [], []
        for arm in job.plan.arms:
            mine = [r for r in responses if r.arm == arm.name]
            failed = sum(r.status == "failed" for r in mine)
            if failed:
                reasons.append(f"{failed} of {len(responses)} requests failed; the first: in arm {arm.name}")
            wrong = self.lossy(arm.params)
            speedup = None
            if arm.kind != "stock" and not failed:
                speedup = compare_arms(stock, mine, dict.fromkeys(prompts, "chat"), job.plan.stats).headline
            times = sorted((r.end_ns or 0) / 1e6 for r in mine)
            late = self.late(arm.params, prompts[0].startswith("own/u"))
            latency = Latency(
                ttft_median=300.0 if late else 100.0,
                ttft_p90=100.0,
                tpot_median=1.0,
                tpot_p90=1.0,
                e2e_median=times[len(times) // 2],
                e2e_p90=times[-1],
            )
            arms.append(_arm(arm, mine, failed, speedup, latency, wrong))
        if any(one.failed for one in arms):
            arms = [msgspec.structs.replace(one, speedup=None, latency=None) for one in arms]
        return Report(
            schema_version=1,
            name=job.plan.name,
            label="smoke",
            status="invalid" if reasons else "valid",
            reasons=tuple(reasons),
            division="exact-greedy",
            plan=PlanRef(name=job.plan.name, hash=job.hash),
            job=job,
            command=(),
            created_at="",
            harness={},
            environment={},
            models={},
            sets=(),
            backends={},
            arms=tuple(arms),
            losslessness=_overall(arms),
            audits=(Audit(name="requests completed", passed=not reasons, detail=""),),
            timeline=_timeline(job, responses),
            telemetry={},
            warnings=(),
            files={},
        )


def _arm(
    arm: ArmSpec, mine: list[Response], failed: int, speedup: Any, latency: Latency, wrong: bool
) -> ArmResult:
    return ArmResult(
        name=arm.name,
        kind=arm.kind,
        backend=arm.backend,
        params=arm.params,
        requests=len(mine),
        failed=failed,
        tokens=TOKENS * (len(mine) - failed),
        tokens_per_second=None,
        speedup=speedup,
        speedup_geomean=None,
        speedup_decode=None,
        by_category=(),
        slower_share=None,
        verdict=None,
        acceptance_length=2.0,
        acceptance=None,
        latency=latency,
        losslessness=ArmLosslessness(
            stock_verdict="violated" if wrong else "exact",
            self_exact=None,
            responses=len(mine),
            tokens=TOKENS * len(mine),
            mismatches=int(wrong),
            near_ties=0,
            ar_identical=None,
        ),
    )


def _overall(arms: list[ArmResult]) -> Losslessness:
    worst = any(one.losslessness is not None and one.losslessness.stock_verdict == "violated" for one in arms)
    return Losslessness(
        stock_verdict="violated" if worst else "exact",
        self_exact=None,
        tokens=100,
        mismatches=int(worst),
        near_ties=0,
        error_bound=0.03,
        distinct_positions=100,
        statement="",
        margin=None,
        stock_noise=None,
        rate_test=None,
        distribution_test=None,
        divergences=(),
        stop_faults=(),
        scorer={},
    )


def _response(prompt: str, arm: str, launch: int, order: int, took: float | None) -> Response:
    refused = Response(
        prompt_id=prompt,
        arm=arm,
        launch=launch,
        block=0,
        order=order,
        status="failed",
        prompt_tokens=10,
        started_at=0.0,
        error="refused",
    )
    if took is None:
        return refused
    end = int(took * 1e9)
    return msgspec.structs.replace(
        refused,
        status="ok",
        error=None,
        token_ids=tuple(range(TOKENS)),
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=end // 10,
        end_ns=end,
        steps=tuple(
            DecodeStep(
                num_draft_tokens=2,
                num_accepted_tokens=2,
                num_emitted_tokens=3,
                at_ns=end // 10 + (end - end // 10) * n // 5,
            )
            for n in range(1, 6)
        ),
    )


def _timeline(job: Job, responses: list[Response]) -> tuple[BlockSpan, ...]:
    return tuple(
        BlockSpan(
            launch=launch,
            block=0,
            arm=arm.name,
            started_at=0.0,
            busy_seconds=sum((r.end_ns or 0) for r in responses if (r.launch, r.arm) == (launch, arm.name))
            / 1e9
            or 1e-9,
            tokens=1,
        )
        for launch in range(job.plan.measure.launches)
        for arm in job.plan.arms
    )


class Stage:
    """A campaign on a simulated host, with its files in one folder."""

    def __init__(self, root: Path, host: Host, loop: Loop | None = None, **hooks: Any) -> None:
        self.root = root
        self.host = host
        self.loop = loop or make_loop()
        self.recalled: list[Recalled] = hooks.pop("recalled", [])
        self.floor: Callable[[Response], float] = hooks.pop("floor", lambda _: 0.0)
        self.remembered: list[tuple[Candidate, Verdict]] = []
        self.conflicts: list[tuple[str, str, str]] = []

    def controller(self, at: Callable[[State], None] = lambda _: None) -> Controller:
        folders = Folders(self.root)
        folders.trials.mkdir(parents=True, exist_ok=True)
        bench = Bench(
            loop=self.loop,
            executor=self.host,
            folder=folders.trials,
            rows=self.root / "public.jsonl",
            floor=self.floor,
            arm=lambda one, name: ArmSpec(
                name=name, kind="candidate", backend=one.backend, params=one.params
            ),
        )
        return Controller(
            bench=bench,
            database=Database(folders.database, lambda: "2026-01-02T03:04:05+00:00"),
            brief=Brief(
                campaign="made",
                deployment=self.loop.job.deployment,
                stock_backend=BACKEND,
                stock_params={"width": 2},
                spaces=self.loop.plan.spaces,
                gaps=(),
                ceiling=None,
            ),
            unseen=folders.unseen,
            keys=self.root / "keys",
            recall=lambda words, limit: self.recalled[:limit],
            remember=lambda one, verdict: self.remembered.append((one, verdict)),
            tuner=lambda trial: tune(
                trial, self.loop.tuning_space, self.loop.plan.tune.trials, self.loop.plan.tune.batch, 0
            ),
            conflict=lambda one, other, reason: self.conflicts.append((one, other, reason)),
            at=at,
        )
