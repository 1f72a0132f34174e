"""Plans, deployments, claims, candidates and campaigns of the loop: what a stranger's TOML may do."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from agent_loop.campaign import Loop, load_loop
from harness.claims.records import load_claim, load_file
from harness.codec import canonical_json, from_toml
from harness.plan import Job, load_deployment, load_job
from sealed_evals.campaign.records import Candidate
from tests.fuzz.hammering import hammer, quick_and_deep, refuses_or_reads
from tests.fuzz.mutating import hostile_toml

DATA = resources.files("harness")
PLAN = tomllib.loads((DATA / "plans" / "reproduce-cpu.toml").read_text())
FULL = PLAN | {
    "oracle": {"calibration_prompts": 6, "verify_rows": 8},
    "stats": {"confidence": 0.95, "resamples": 100, "ttft_ms": 10.0},
    "division": "exact-greedy",
}
DEPLOYMENT = tomllib.loads((DATA / "deployments" / "smollm2-135m-cpu.toml").read_text())
CLAIMS = tomllib.loads((DATA / "claims" / "examples.toml").read_text())
CANDIDATE = {"schema": "candidate/1", "name": "wide", "backend": "a:b", "params": {"drafts": 4, "x": "y"}}
LOOP = tomllib.loads((resources.files("agent_loop") / "demo" / "first.toml").read_text()) | {
    "plan": "reproduce-cpu"
}


def plan(path: Path) -> Job:
    job = load_job(str(path))
    assert len(job.hash) == 64
    assert (path.parent / job.plan.name).resolve().parent == path.parent.resolve(), "a run folder elsewhere"
    canonical_json(job)
    return job


def claims(path: Path) -> object:
    for claim in load_file(str(path)).claims:
        load_claim(f"{path}#{claim.name}")
    return None


def candidate(path: Path) -> object:
    return canonical_json(from_toml(path.read_bytes().decode("utf-8", "replace"), Candidate, str(path)))


def loop(path: Path) -> Loop:
    found = load_loop(path)
    assert len(found.hash) == 64
    assert (path.parent / found.plan.name).resolve().parent == path.parent.resolve(), "a folder elsewhere"
    return found


KINDS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "plan": (plan, FULL),
    "deployment": (lambda path: canonical_json(load_deployment(str(path))), DEPLOYMENT),
    "claims": (claims, CLAIMS),
    "candidate": (candidate, CANDIDATE),
    "loop": (loop, LOOP),
}


@quick_and_deep
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_refused_by_name_or_is_harmless(kind: str, deep: bool, tmp_path: Path) -> None:
    read, valid = KINDS[kind]
    path = tmp_path / "file.toml"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        refuses_or_reads(lambda: read(path), str(path) if kind != "plan" else "")

    hammer(check, hostile_toml(valid), deep=deep)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_that_are_made_wrong_are_right_themselves(kind: str, tmp_path: Path) -> None:
    from tests.fuzz.mutating import toml_text  # noqa: PLC0415

    read, valid = KINDS[kind]
    path = tmp_path / "file.toml"
    path.write_text(toml_text(valid), encoding="utf-8")
    read(path)
