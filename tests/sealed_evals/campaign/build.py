"""Small campaigns for tests."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.plan import (
    ArmSpec,
    Deployment,
    Job,
    MeasureSpec,
    ModelSpec,
    OracleSpec,
    Plan,
    SetSpec,
    StatsSpec,
)
from harness.records import Sampling
from harness.results import ArmResult, Interval, Losslessness, PlanRef, Report, StockVerdict
from sealed_evals.campaign.controller import Controller, load_key
from sealed_evals.campaign.create import Wanted, create
from sealed_evals.campaign.decide import stock_job
from sealed_evals.campaign.records import Campaign, Candidate, Sizing
from sealed_evals.campaign.vault import CampaignFolder, load_campaign
from sealed_evals.generator.rewording import Known, known
from tests.sealed_evals.campaign import engine

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NOTHING_KNOWN: Known = known(())
BACKEND = f"{engine.HERE}:open_session"
CANDIDATE = Candidate(schema="candidate/1", name="wide", backend=BACKEND, params={"width": 6})


def interval(low: float, high: float, *, confidence: float = 0.95) -> Interval:
    return Interval(
        point=(low + high) / 2.0,
        low=low,
        high=high,
        confidence=confidence,
        method="made",
        launches=2,
        blocks=2,
        prompts=8,
        resamples=200,
    )


def arm_result(name: str, speedup: Interval | None, **fields: Any) -> ArmResult:
    usual: dict[str, Any] = {
        "name": name,
        "kind": "stock" if name == "stock" else "candidate",
        "backend": BACKEND,
        "params": {},
        "requests": 32,
        "failed": 0,
        "tokens": 320,
        "by_category": (),
        "speedup": speedup,
    }
    absent = [
        *("tokens_per_second", "speedup_geomean", "speedup_decode", "slower_share", "verdict"),
        *("acceptance_length", "acceptance", "latency", "losslessness"),
    ]
    every: dict[str, Any] = dict.fromkeys(absent)
    return ArmResult(**(every | usual | fields))


def report(speedup: Interval | None, **fields: Any) -> Report:
    """A report of a confirmation, fine but for what is given."""
    job = stock_job(make_job(), 0.05, rows=8)
    both = (*job.plan.arms, msgspec.structs.replace(job.plan.arms[0], name="candidate", kind="candidate"))
    job = msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, arms=both))
    usual: dict[str, Any] = {
        "schema_version": 1,
        "name": "known",
        "label": "smoke",
        "status": "valid",
        "reasons": (),
        "division": "exact-greedy",
        "plan": PlanRef(name="known", hash=job.hash),
        "job": job,
        "command": (),
        "created_at": "",
        "arms": (arm_result("stock", None), arm_result("candidate", speedup)),
        "losslessness": losslessness("exact"),
    }
    facts = ("harness", "environment", "models", "backends", "telemetry", "files")
    empty: dict[str, Any] = {name: {} for name in facts}
    empty |= dict.fromkeys(("sets", "audits", "timeline", "warnings"), ())
    return Report(**(empty | usual | fields))


def losslessness(verdict: StockVerdict) -> Losslessness:
    return Losslessness(
        stock_verdict=verdict,
        self_exact=None,
        tokens=320,
        mismatches=0,
        near_ties=0,
        error_bound=None,
        distinct_positions=320,
        statement="",
        margin=None,
        stock_noise=None,
        rate_test=None,
        distribution_test=None,
        divergences=(),
        stop_faults=(),
        scorer={},
    )


class Place(NamedTuple):
    """A campaign on disk."""

    folder: CampaignFolder
    root: Path  # of the controller
    campaign: Campaign

    @property
    def controller(self) -> Controller:
        return Controller(self.root, self.campaign.campaign_id)

    @property
    def secret(self) -> bytes:
        campaign, sha256 = load_campaign(self.folder)
        return load_key(self.controller, campaign, sha256)


def make_job(model: Path | str = "nowhere", **plan: Any) -> Job:
    fields: dict[str, Any] = {
        "schema": "plan/1",
        "name": "known",
        "deployment": "known",
        "label": "smoke",
        "sets": (SetSpec(name="embedded", count=1),),
        "arms": (
            ArmSpec(name="ar", kind="ar", backend=BACKEND, params={"width": 1}),
            ArmSpec(name="usual", kind="stock", backend=BACKEND),
        ),
        "sampling": Sampling(max_tokens=12),
        "measure": MeasureSpec(launches=1, blocks=2, warmup_prompts=1, max_foreign_load=1.0),
        "oracle": OracleSpec(
            scorer=f"{engine.HERE}:open_scorer",
            calibration_prompts=1,
            calibration_tokens=4,
            verify_rows=2,
        ),
        "stats": StatsSpec(resamples=200),
    }
    return Job(
        plan=Plan(**(fields | plan)),
        deployment=Deployment(
            schema="deployment/1",
            name="known",
            target=ModelSpec(path=str(model), remote=True),
            device="cpu",
            context_length=4096,
        ),
    )


def wanted(**fields: Any) -> Wanted:
    usual = Wanted(
        job=make_job(),
        shards=3,
        public_rows=10,
        level=0.05,
        gain=0.0,
        sizing=Sizing(gain=0.05, spread=0.1, power=0.8),
        rows=8,
    )
    return usual._replace(**fields)


def start(at: Path, **fields: Any) -> Place:
    folder, root = CampaignFolder(at / "campaign"), at / "controller"
    campaign = create(wanted(**fields), folder, root, NOTHING_KNOWN, NOW)
    return Place(folder, root, campaign)


def candidate(**params: Any) -> Candidate:
    return msgspec.structs.replace(CANDIDATE, params=params)
