"""Every known mistake of speculative engines is caught through the public command line.

Arms of one run share a target, so mutants that can live in one run do: each has its own arm and its
own verdict, beside clean arms with the same drafters, which must stay clean.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cli import main
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_VIOLATED
from harness.results import Report
from tests.mutants.stage import Stage, arm, arm_of, mutants, report_of
from tests.mutants.zoo import ZOO

pytestmark = pytest.mark.usefixtures("launches_here")


class Staged(NamedTuple):
    """A run with mutants, finished."""

    code: int
    folder: Path
    report: Report


BASE = [arm("ar", "none", "ar"), arm("clean-replay", "replay"), arm("clean-flawed", "replay", flaw="flawed")]

GREEDY = [
    *BASE,
    arm("clean-ngram", "ngram", "stock", ngram_min=1),
    arm("clean-null", "null", "null"),
    arm("clean-uncapped", "replay", mutant="clean_uncapped"),
    *mutants(("eos_in_block_ignored", "length_before_stop", "over_the_budget"), "replay"),
    *mutants(("wrong_finish_reason",), "replay"),
    *mutants(("first_draft_unverified",), "null"),
    *mutants(("all_drafts_unverified", "bonus_repeats_the_last_draft"), "replay", flaw="flawed"),
    *mutants(("sum_of_mask", "cache_not_cropped", "cache_cropped_too_far"), "replay", flaw="flawed"),
]
STRINGS = [*BASE, *mutants(("stop_string_window", "ids_stay_behind_the_stop_string"), "replay")]
PENALTIES = [*BASE, *mutants(("penalties_per_step",), "replay")]
MINIMUM = [*BASE, *mutants(("min_tokens_counts_steps", "min_tokens_ignored"), "replay")]
SAMPLED = [
    *BASE,
    arm("clean-ngram", "ngram", "stock", ngram_min=1),
    *mutants(("argmax_above_zero", "seed_of_the_slot"), "replay"),
]
ALONE = ("bonus_emitted_twice", "counts_before_the_cut")
SELDOM = ("penalties", "minimum")  # a run costs seconds; their rules are held in the tests of the engine, too
RUNS = {"greedy": GREEDY, "strings": STRINGS, "penalties": PENALTIES, "minimum": MINIMUM, "sampled": SAMPLED}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, launches_here: None) -> Stage:
    return Stage(tmp_path_factory.mktemp("mutants"))


Runs = Callable[[str], Staged]


@pytest.fixture(scope="module")
def runs(stage: Stage, undrawn: None) -> Runs:
    """Each run by its name, made when it is first asked for."""
    stops = list(stage.stops_in_blocks())
    samplings = {
        "greedy": f"stop_token_ids = {stops}",
        "strings": f"stop = [{json.dumps(stage.string_in_block())}]",
        "penalties": "frequency_penalty = 1.5\npresence_penalty = 0.5\nrepetition_penalty = 1.2",
        "minimum": f"min_tokens = 17\nstop_token_ids = {stops}",
        "sampled": "temperature = 1.0\nseed = 3",
    }

    @functools.cache
    def run(name: str) -> Staged:
        code, folder = stage.run(name, RUNS[name], samplings[name], batch=3 if name == "sampled" else 1)
        return Staged(code, folder, report_of(folder))

    return run


def marks(run: str) -> Any:
    return pytest.mark.slow if run in SELDOM else ()


def places() -> list[Any]:
    """Every mutant that shares a run, with the run it lives in."""
    return [
        pytest.param(run, one["name"], id=one["name"], marks=marks(run))
        for run, arms in RUNS.items()
        for one in arms
        if one["name"] in ZOO
    ]


def clean_places() -> list[Any]:
    return [
        pytest.param(run, one["name"], id=f"{run}-{one['name']}", marks=marks(run))
        for run, arms in RUNS.items()
        for one in arms
        if one["name"] not in ZOO
    ]


def test_every_mutant_of_the_zoo_has_a_run() -> None:
    assert {place.values[1] for place in places()} | set(ALONE) == set(ZOO)


@pytest.mark.parametrize(("run", "name"), [p for p in places() if p.id != "seed_of_the_slot"])
def test_the_oracle_calls_a_mutant_violated(runs: Runs, run: str, name: str) -> None:
    found = arm_of(runs(run).report, name).losslessness
    assert found is not None
    assert found.stock_verdict == "violated", ZOO[name].about


@pytest.mark.parametrize(("run", "name"), clean_places())
def test_the_oracle_raises_no_false_alarm_on_the_clean_engine(runs: Runs, run: str, name: str) -> None:
    found = arm_of(runs(run).report, name).losslessness
    assert found is not None
    assert found.stock_verdict == ("not-judged" if run == "sampled" else "exact")
    assert found.self_exact is True


@pytest.mark.parametrize("run", [pytest.param(run, marks=marks(run)) for run in RUNS])
def test_a_run_with_a_mutant_ends_with_the_exit_code_of_a_violation(runs: Runs, run: str) -> None:
    assert runs(run).code == EXIT_VIOLATED
    assert runs(run).report.status == "valid"


def test_neighbours_that_change_a_seeded_output_fail_the_audit(runs: Runs) -> None:
    audits = {audit.name: audit.passed for audit in runs("sampled").report.audits}
    assert audits["repeatable: seed_of_the_slot"] is False
    assert audits["repeatable: clean-replay"] is True


def test_sampled_speculation_repeats_the_autoregressive_tokens(runs: Runs) -> None:
    for name in ("clean-replay", "clean-flawed"):
        found = arm_of(runs("sampled").report, name)
        assert found.losslessness is not None
        assert found.losslessness.self_exact is True
        assert found.acceptance_length is not None
        assert found.acceptance_length > 1.0


@pytest.mark.parametrize("name", ALONE)
def test_counts_that_cannot_be_make_the_run_invalid(stage: Stage, undrawn: None, name: str) -> None:
    stops = list(stage.stops_in_blocks())
    arms = [arm("ar", "none", "ar"), *mutants((name,), "replay")]
    code, folder = stage.run(name, arms, f"stop_token_ids = {stops}")
    report = report_of(folder)
    assert code == EXIT_INVALID
    assert report.status == "invalid"
    assert "backend broke the event protocol" in report.reasons[0]
    assert all(result.speedup is None and result.tokens_per_second is None for result in report.arms)


def test_a_clean_run_ends_well_and_passes_its_check_until_a_token_is_flipped(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [
        arm("ar", "none", "ar"),
        arm("stock", "ngram", "stock", ngram_min=1),
        arm("null", "null", "null"),
        arm("replay", "replay", "replay"),
    ]
    code, folder = stage.run("clean", arms, f"stop_token_ids = {list(stage.stops_in_blocks())}")
    report = report_of(folder)
    assert code == EXIT_OK
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict == "exact"
    assert report.losslessness.self_exact is True
    assert arm_of(report, "null").acceptance_length == 1.0
    assert [audit.name for audit in report.audits if audit.passed is False] == []
    # Six short prompts tell too little of acceptance, and a busy machine too little of what capturing costs.
    unsure = [audit.name for audit in report.audits if audit.passed is None and "capturing" not in audit.name]
    assert unsure == ["acceptance hangs on the prompt: stock"]
    assert main(["check", str(folder)]) == EXIT_OK
    capsys.readouterr()

    path = folder / "responses.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = next(n for n, line in enumerate(lines) if line["arm"] == "stock" and len(line["token_ids"]) > 9)
    lines[chosen]["token_ids"][7] ^= 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["check", str(folder)]) == EXIT_VIOLATED
    told = capsys.readouterr().out
    assert "position 7" in told
    assert str(lines[chosen]["prompt_id"]) in told
