"""One confirmation as a user makes it: command line, own process, real run, one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ModelError
from harness.oracle.stored import load_run
from harness.records import Sampling
from sealed_evals.campaign.canary import canary
from sealed_evals.campaign.confirm import confirm as run_confirm
from sealed_evals.campaign.confirm import in_own_process
from sealed_evals.campaign.crypto import derive
from sealed_evals.campaign.ledger import read_ledger
from sealed_evals.campaign.opening import Request
from sealed_evals.campaign.records import Outcome
from sealed_evals.campaign.vault import shard_key
from tests.sealed_evals.campaign import build, engine
from tests.sealed_evals.campaign.build import Place

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Place:
    at = tmp_path_factory.mktemp("played")
    return build.start(at, job=build.make_job(engine.write_model(at / "model")), shards=4)


def confirm(place: Place, candidate: str) -> subprocess.CompletedProcess[str]:
    path = place.root.parent / "candidate.toml"
    path.write_text(
        f'schema = "candidate/1"\nname = "x"\nbackend = "{build.BACKEND}"\nparams = {candidate}\n'
    )
    code = (
        "import argparse, sys\n"
        "from sealed_evals.commands import register\n"
        "parser = argparse.ArgumentParser()\n"
        "register(parser.add_subparsers())\n"
        "options = parser.parse_args(sys.argv[1:])\n"
        "sys.exit(options.run(options))\n"
    )
    return subprocess.run(
        [
            *(sys.executable, "-c", code, "evals", "confirm", str(path)),
            *("--campaign", str(place.folder.root), "--controller", str(place.root)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )


def test_a_faster_exact_candidate_is_accepted_and_one_line_is_all_that_is_told(played: Place) -> None:
    told = played.root.parent / "told"

    done = confirm(played, f'{{ width = 12, tell = "{told}" }}')

    assert (done.stdout, done.stderr, done.returncode) == ("accept\n", "", 0)
    run = load_run(played.controller.evidence("000"))
    assert {arm.name for arm in run.report.arms} == {"stock", "candidate"}
    assert run.report.losslessness is not None
    assert run.report.losslessness.stock_verdict == "exact"
    assert len(run.prompts) == 8
    (summary,) = run.report.sets
    assert (summary.split, summary.merkle_root) == ("000", played.campaign.shards[0].root)
    entries, _ = read_ledger(played.folder.ledger)
    assert [(entry.event, entry.accepted) for entry in entries[1:]] == [("opened", None), ("decided", True)]
    assert entries[-1].evidence is not None
    mark = canary(derive(played.secret, "canaries"), "000/0")
    assert mark in (played.controller.evidence("000") / "prompts.jsonl").read_text()
    assert "Item" in (told / "stolen.txt").read_text()  # the arm really tried to tell


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "line"),
    [
        ("{ width = 12, wrong = true }", "reject: violated\n"),
        ("{ width = 2 }", "reject: not-faster\n"),
        ("{ width = 12, fail = true }", "reject: failed\n"),
    ],
)
def test_every_other_candidate_is_rejected_with_the_class_of_the_reason(
    played: Place, params: str, line: str
) -> None:
    done = confirm(played, params)
    assert (done.stdout, done.stderr, done.returncode) == (line, "", 1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A campaign whose tokens are drawn, of two with 0.7 and 0.3: neither sure nor worthless to a test."""
    at = tmp_path_factory.mktemp("drawn")
    sampling = Sampling(max_tokens=12, temperature=8.0, top_k=2)
    return build.start(at, job=build.make_job(engine.write_model(at / "model"), sampling=sampling), shards=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "line"),
    [
        ("{ width = 12 }", "accept\n"),
        ("{ width = 12, cold = true }", "reject: violated\n"),
        ("{ width = 12, anew = true }", "reject: violated\n"),
        ("{ width = 2 }", "reject: not-faster\n"),
    ],
    ids=["honest", "cold", "anew", "no faster"],
)
def test_above_temperature_0_draws_of_stocks_distribution_are_accepted_and_others_are_not(
    drawn: Place, params: str, line: str
) -> None:
    done = confirm(drawn, params)
    assert (done.stdout, done.stderr) == (line, "")
    shard = read_ledger(drawn.folder.ledger)[0][-1].shard
    assert shard is not None
    run = load_run(drawn.controller.evidence(shard))
    passed = {}
    for arm in run.report.arms:
        assert arm.losslessness is not None
        assert arm.losslessness.distribution_test is not None
        passed[arm.name] = arm.losslessness.distribution_test.passed
    # The first draws of `anew` are stock's.
    assert passed == {"stock": True, "candidate": "cold" not in params}


def test_a_process_that_ends_without_an_outcome_rejects(place: Place, tmp_path: Path) -> None:
    """Here because it is given the key of another shard."""
    request = Request(
        campaign=str(place.folder.root),
        shard="000",
        key=shard_key(place.secret, "001").hex(),
        candidate=build.CANDIDATE,
        evidence=str(tmp_path / "evidence"),
        evals_dir=None,
    )

    assert in_own_process(request) == Outcome(accepted=False, reason="failed")
    assert "the key is not its key" in (tmp_path / "evidence/log.txt").read_text()


def test_no_shard_is_spent_when_the_target_is_not_here(place: Place) -> None:
    """The plan of this campaign names a target that does not exist."""
    with pytest.raises(ModelError, match="nowhere is no folder"):
        run_confirm(
            build.CANDIDATE, place.folder, place.root, evals_dir=None, now=lambda: build.NOW, judge=None
        )
    assert [entry.event for entry in read_ledger(place.folder.ledger)[0]] == ["started"]
