"""A claim put to the test on two servers: the run it asks for, and what comes of it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from harness.claims.trial import chosen_claim, on_servers
from harness.cli import build_parser
from harness.errors import UsageError
from harness.plan import Job
from tests.harness.load.model_server import Manner, Target, serving
from tests.harness.tiny import write_llama

REPORT = Path(__file__).parents[3] / "reports" / "2026-12-02-compare-vllm-cpu"
TEXTS = ("tell me", "count", "say red", "why", "list", "what", "name", "spell", "add", "sing")
CLAIM = """
schema = "claims/1"
who = "a server's maker"
source = "its announcement"
read = "source"

[[claims]]
name = "fast"
target = "target"
drafter = "ngram"
engine = "vllm"
gpu = "H100"
concurrency = 1
temperature = 0.0
max_tokens = 8
figures = [{ sets = ["own"], speedup = 40.0 }]
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(write_llama(tmp_path_factory.mktemp("claimed") / "target", seed=3))


def test_servers_are_measured_under_the_claims_own_regime_and_then_it_is_held_against_them(
    target: Target, tmp_path: Path
) -> None:
    prompts, claim, jobs = tmp_path / "mine.jsonl", tmp_path / "claim.toml", []
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    claim.write_text(CLAIM)

    def measure(job: Job, out: Path, options: argparse.Namespace) -> int:
        """Leaves a committed run of two servers on this machine."""
        jobs.append(job)
        shutil.copytree(REPORT, out)
        return 0

    with serving(target, Manner()) as stock, serving(target, Manner()) as candidate:
        words = [
            *("verify-claim", str(claim), "--stock", stock, "--candidate", candidate),
            *("--prompts", str(prompts), "--count", "4", "--calibration-set", "own"),
            *("--out", str(tmp_path / "out"), "--arm", "candidate"),
        ]
        options = build_parser().parse_args(words)
        (found,) = on_servers(chosen_claim(options), options, measure)
    assert (found.verdict, found.rule) == ("not comparable", "same system")
    assert "target: claimed target" in found.detail
    (job,) = jobs
    assert job.plan.sampling.max_tokens == 8
    assert job.plan.sampling.greedy
    assert [(drawn.name, drawn.count) for drawn in job.plan.sets] == [("own", 4)]
    assert job.plan.label == "smoke"  # 60 requests stand behind no claim
    assert {arm.kind: arm.params["url"] for arm in job.plan.arms} == {"stock": stock, "candidate": candidate}


def test_a_file_holds_one_set(tmp_path: Path) -> None:
    words = ["verify-claim", "dflash/qwen3-8b-t0", "--stock", "http://a", "--candidate", "http://b"]
    options = build_parser().parse_args([*words, "--prompts", str(tmp_path / "mine.jsonl")])
    with pytest.raises(UsageError, match="the claim has 7 sets; choose one with --set"):
        on_servers(chosen_claim(options), options, lambda job, out, options: 0)
