"""A short run of a deployment's stock, with the arms beside it that tell where its time goes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent_loop.campaign import built_in_campaigns, load_loop
from agent_loop.cost_model.profiling import ProfileSpec, Traced
from agent_loop.cost_model.trees import NODES
from agent_loop.executors.protocol import Executor, TrialFailed
from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun, UsageError
from harness.oracle.stored import StoredRun
from harness.plan import (
    ArmSpec,
    Deployment,
    Job,
    MeasureSpec,
    OracleSpec,
    Param,
    Plan,
    SetSpec,
    StatsSpec,
    built_in,
    load_deployment,
    load_job,
)
from harness.records import DecodeRequest, Sampling
from harness.storage import write_atomic

BACKEND = "reference_mechanisms.backend:open_session"  # where a deployment names none
DRAFTER: dict[str, Param] = {"drafter": "dflash"}
TREES = (7, 23, 63)  # nodes: with the anchor they fill steps of 8, 24 and 64 rows
TREE = "tree-"  # begins the names of their arms
OF_CHAINS = ("min_confidence", "draft_sample_method")  # parameters that no tree takes
SAID = 160  # characters of why an arm is left out
TRACE, TRACED = "trace.json", "traced.json"


class Stock(NamedTuple):
    """What is measured."""

    deployment: Deployment
    arm: ArmSpec


def stock_of(target: str, backend: str | None, params: dict[str, Param] | None) -> Stock:
    """The stock of a deployment, a plan or a campaign, by name or file.

    Args:
        target: a deployment has no arm of its own: stock is then `backend` with `params`.
        backend: in place of the default, or of the plan's.
        params: in place of the default, or of the plan's.

    Raises:
        UsageError: there is no such thing, or it has no stock arm.
    """
    deployment, arm = _named(target)
    if arm is None and deployment.device == "remote" and backend is None:
        raise UsageError(
            f"deployment {deployment.name}: its arms are servers; give a plan, or --backend and --params"
        )
    found = arm or ArmSpec(name="stock", kind="stock", backend=BACKEND, params=DRAFTER)
    found = msgspec.structs.replace(found, name="stock", backend=backend or found.backend)
    return Stock(deployment, found if params is None else msgspec.structs.replace(found, params=params))


def probe_job(stock: Stock, prompts: int, tokens: int, *, trees: bool = True) -> Job:
    """Stock, and beside it what its backend may have: no drafts, free drafts, trees.

    Args:
        stock: what is measured.
        prompts: of the embedded set.
        tokens: of an answer, at most.
        trees: whether arms of trees are among them.
    """
    beside = [arm for arm in _beside(stock.arm) if trees or not arm.name.startswith(TREE)]
    plan = Plan(
        schema="plan/1",
        name=f"ceiling-{stock.deployment.name}",
        deployment=stock.deployment.name,
        label="smoke",
        note="Shows where stock's time goes; no speedup claim.",
        sets=(SetSpec(name="embedded", count=prompts),),
        arms=(stock.arm, *beside),
        sampling=Sampling(max_tokens=tokens),
        measure=MeasureSpec(launches=1, blocks=1, warmup_prompts=1, max_foreign_load=1.0),
        oracle=OracleSpec(calibration_prompts=1, calibration_tokens=4),  # its verdict is not what is asked
        stats=StatsSpec(resamples=1000),
    )
    return Job(plan=plan, deployment=stock.deployment)


def run_probe(job: Job, executor: Executor, folder: Path, note: Callable[[str], None]) -> StoredRun:
    """Run it; an arm that the backend does not have is left out.

    Args:
        job: of `probe_job`.
        executor: runs it.
        folder: of the runs, one a set of arms.
        note: told what is left out.

    Raises:
        InvalidRun: it gives no report without any arm beside stock, either.
    """
    while True:
        try:
            return executor.measure(job, folder / job.hash[:12])
        except TrialFailed as error:
            refused = next((arm for arm in job.plan.arms if arm.name == error.arm), None)
            if refused is None or refused.kind == "stock":
                raise InvalidRun(error.said.removeprefix("specpilot-harness: ")) from None
            alike = {arm.name for arm in job.plan.arms if NODES in arm.params and arm.kind != "stock"}
            out = alike if NODES in refused.params else {refused.name}
            note(f"without {', '.join(sorted(out))}: {error.said[:SAID]}")
            left = tuple(arm for arm in job.plan.arms if arm.name not in out)
            job = msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, arms=left))


def trace_stock(stock: Stock, run: StoredRun, folder: Path) -> Traced:
    """Trace a few of stock's steps on the run's first prompt, in a process of its own.

    Raises:
        InvalidRun: it gave no trace.
    """
    request = DecodeRequest(
        request_id="traced", prompt_token_ids=run.prompts[0].token_ids, sampling=run.job.plan.sampling
    )
    spec = ProfileSpec(
        deployment=stock.deployment,
        arm=stock.arm,
        request=request,
        trace=str((folder / TRACE).absolute()),
        out=str((folder / TRACED).absolute()),
    )
    write_atomic(folder / "trace-spec.json", canonical_json(spec))
    done = subprocess.run(
        [sys.executable, "-m", "agent_loop.cost_model.profiling", str(folder / "trace-spec.json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise InvalidRun(f"stock was not traced: {said[-1] if said else 'it said nothing'}")
    return from_json((folder / TRACED).read_bytes(), Traced, TRACED)


def _beside(stock: ArmSpec) -> Iterator[ArmSpec]:
    """Arms of a backend that names its drafter."""
    if "drafter" not in stock.params:
        return
    kept: dict[str, Param] = {"graphs": stock.params["graphs"]} if "graphs" in stock.params else {}
    plain: dict[str, Param] = {**kept, "drafter": "none"}
    yield ArmSpec(name="ar", kind="ar", backend=stock.backend, params=plain)
    drafts = stock.params.get("drafts", 4)
    free: dict[str, Param] = {**kept, "drafter": "null", "drafts": drafts}
    yield ArmSpec(name="null", kind="null", backend=stock.backend, params=free)
    chains = {name: value for name, value in stock.params.items() if name not in OF_CHAINS}
    for nodes in TREES:
        tree: dict[str, Param] = {**chains, NODES: nodes}
        yield ArmSpec(name=f"{TREE}{nodes}", kind="candidate", backend=stock.backend, params=tree)


def _named(target: str) -> tuple[Deployment, ArmSpec | None]:
    path = Path(target)
    if target in built_in_campaigns() and not path.is_file():
        loop = load_loop(path)
        return loop.job.deployment, loop.stock
    if path.suffix != ".toml" and not path.is_file():
        if target in built_in("deployments") or target not in built_in("plans"):
            return load_deployment(target), None
        return _stock(load_job(target))
    try:
        schema = tomllib.loads(path.read_text(encoding="utf-8")).get("schema")
    except (OSError, ValueError) as error:
        raise UsageError(f"{target}: cannot be read: {error}") from None
    if schema == "loop/1":
        loop = load_loop(path)
        return loop.job.deployment, loop.stock
    return _stock(load_job(target)) if schema == "plan/1" else (load_deployment(target), None)


def _stock(job: Job) -> tuple[Deployment, ArmSpec]:
    arm = next((arm for arm in job.plan.arms if arm.kind == "stock"), None)
    if arm is None:
        raise UsageError(f"plan {job.plan.name}: has no arm of kind 'stock'")
    return job.deployment, arm
