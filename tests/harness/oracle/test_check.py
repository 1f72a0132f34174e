"""Every way to forge a report or its files that we can think of, and the honest report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.codec import canonical_json
from harness.errors import DataError
from harness.oracle.check import check_report
from harness.paths import RunFolder
from harness.progress import SilentReporter
from harness.records import PromptLine, Response
from harness.storage import read_lines, write_atomic, write_lines
from tests.harness.oracle.runs import CALIBRATION, TinyRun, edit_report, edit_response
from tests.harness.oracle.stock import HashStock
from tests.harness.tiny import VOCAB

STOCK_RESPONSE = 4  # launch 0, block 0, arm stock, prompt own/1


def check(folder: RunFolder, tiny: TinyRun, *, calibrated: bool = True) -> tuple[str, ...]:
    return check_report(folder.root, SilentReporter(), CALIBRATION if calibrated else None, stock=tiny.stock)


@pytest.mark.parametrize("calibrated", [True, False], ids=["own calibration", "prompts of the run"])
def test_an_honest_report_has_no_problem(folder: RunFolder, tiny: TinyRun, calibrated: bool) -> None:
    assert check(folder, tiny, calibrated=calibrated) == ()


def test_the_stock_of_the_plan_is_loaded_where_none_is_given(folder: RunFolder) -> None:
    assert check_report(folder.root, SilentReporter(), CALIBRATION) == ()


@pytest.mark.parametrize("position", [0, 5, 9], ids=["first", "middle", "last"])
@pytest.mark.parametrize("with_text", [True, False], ids=["text kept", "text removed"])
def test_a_flipped_token_fails_with_arm_prompt_and_position_last(
    folder: RunFolder, tiny: TinyRun, position: int, with_text: bool
) -> None:
    lines = list(read_lines(folder.responses, Response))
    ids = list(lines[STOCK_RESPONSE].token_ids)
    ids[position] = (ids[position] + 1) % 256
    more = {} if with_text else {"text": None}
    edit_response(folder, STOCK_RESPONSE, token_ids=tuple(ids), **more)
    problems = check(folder, tiny)
    assert all(part in problems[-1] for part in ("arm stock", "prompt own/1", f"position {position}"))
    assert problems[-1].startswith("Violated")
    assert any("`losslessness.stock_verdict` is exact, the stored ids give violated" in p for p in problems)


def test_a_token_swapped_for_the_runner_up_within_the_margin_is_still_told(
    tiny: TinyRun, tmp_path: Path
) -> None:
    # Stock's noise is larger than its gaps here, so the verdict stays near-tie; the count does not.
    scorer = HashStock(vocab=VOCAB, noise=2.0, live=2)
    noisy = TinyRun(tiny.model, scorer)
    folder = noisy.write(tmp_path)
    assert check(folder, noisy) == ()
    for index, one in enumerate(list(read_lines(folder.responses, Response))[:6]):
        prompt = noisy.prompts[index % 3].token_ids
        best = np.argsort(-scorer.row((*prompt, *one.token_ids[:-1]), None))
        if one.arm == "stock" and best[0] == one.token_ids[-1]:
            break
    edit_response(folder, index, token_ids=(*one.token_ids[:-1], int(best[1])), text=None)
    problems = check(folder, noisy)
    assert not any("Violated" in problem for problem in problems)
    assert any("arm stock: `losslessness.mismatches`" in problem for problem in problems)
    assert problems[-1].startswith(
        f"arm stock, prompt {one.prompt_id}, launch 0, block 0, position 9: the ids leave"
    )


def test_a_token_cut_off_the_end_is_seen(folder: RunFolder, tiny: TinyRun) -> None:
    one = list(read_lines(folder.responses, Response))[STOCK_RESPONSE]
    edit_response(folder, STOCK_RESPONSE, token_ids=one.token_ids[:-1], steps=one.steps[:-1], text=None)
    problems = check(folder, tiny)
    assert "max_tokens is 10" in problems[-1]
    assert any("arm stock: `tokens`" in problem for problem in problems)


def test_a_response_that_was_removed_is_missed(folder: RunFolder, tiny: TinyRun) -> None:
    lines = list(read_lines(folder.responses, Response))
    write_lines(folder.responses, lines[:STOCK_RESPONSE] + lines[STOCK_RESPONSE + 1 :])
    assert any(
        "1 responses are missing, the first: arm stock, prompt own/1" in p for p in check(folder, tiny)
    )


def test_a_response_that_is_there_twice_is_seen(folder: RunFolder, tiny: TinyRun) -> None:
    edit_response(folder, STOCK_RESPONSE, block=1)
    problems = check(folder, tiny)
    assert any(
        "1 responses are there more than once, the first: arm stock" in problem for problem in problems
    )
    assert any("two responses to own/1" in problem for problem in problems)


def test_a_response_of_another_arm_is_seen(folder: RunFolder, tiny: TinyRun) -> None:
    edit_response(folder, STOCK_RESPONSE, arm="mystery")
    problems = check(folder, tiny)
    assert any("1 responses are not of this plan, the first: arm mystery" in problem for problem in problems)


def test_a_changed_prompt_text_is_seen(folder: RunFolder, tiny: TinyRun) -> None:
    lines = list(read_lines(folder.prompts, PromptLine))
    easier = msgspec.structs.replace(lines[1].prompt, turns=("say a a a a",))
    lines[1] = msgspec.structs.replace(lines[1], prompt=easier)
    write_lines(folder.prompts, lines)
    problems = check(folder, tiny)
    assert "prompts.jsonl: the ids of prompt own/1 are not those of its text" in problems
    assert problems[-1].startswith("Violated")  # the emitted ids answer another prompt


def test_a_changed_prompt_length_is_seen(folder: RunFolder, tiny: TinyRun) -> None:
    edit_response(folder, STOCK_RESPONSE, prompt_tokens=3)
    assert any("`prompt_tokens` is 3" in problem for problem in check(folder, tiny))


Forge = Callable[[dict[str, Any]], None]


def put(*path: str | int, value: Any) -> Forge:
    def change(report: dict[str, Any]) -> None:
        target: Any = report
        for key in path[:-1]:
            target = target[key]
        assert target[path[-1]] != value, "the forgery changes nothing"
        target[path[-1]] = value

    return change


FORGERIES = [
    (put("arms", 1, "speedup", "point", value=9.0), "arm stock: `speedup.point` is 9.0"),
    (put("arms", 1, "speedup", "low", value=1.5), "`speedup.low`"),
    (put("arms", 1, "speedup", value=None), "`speedup` is None"),
    (put("arms", 1, "tokens_per_second", value=1e6), "`tokens_per_second`"),
    (put("arms", 1, "tokens", value=451), "arm stock: `tokens` is 451, the responses give 450"),
    (put("arms", 1, "acceptance_length", value=2.5), "`acceptance_length` is 2.5"),
    (put("arms", 1, "acceptance", "length", value=2.5), "`acceptance.length`"),
    (
        put("arms", 1, "acceptance_by_set", 0, "length_with_degenerate", value=9.5),
        "`acceptance_by_set[0].length_with_degenerate`",
    ),
    (
        put("detections", value=[{"arm": "stock", "detector": "d", "found": False, "detail": ""}]),
        "`detections` are not those that the responses give",
    ),
    (put("arms", 1, "acceptance", "num_accepted_tokens", value=1), "`acceptance.num_accepted_tokens`"),
    (put("arms", 1, "verdict", value="equivalent"), "`verdict` is 'equivalent'"),
    (put("arms", 1, "latency", "ttft_median", value=1.0), "`latency.ttft_median`"),
    (put("arms", 1, "by_category", 0, "speedup", "point", value=7.0), "`by_category[0].speedup.point`"),
    (put("arms", 1, "failed", value=1), "`failed` is 1"),
    (put("arms", 1, "losslessness", value=None), "arm stock: `losslessness` is missing"),
    (put("arms", 1, "losslessness", "self_exact", value=False), "arm stock: `losslessness.self_exact`"),
    (put("arms", 1, "losslessness", "ar_identical", value=1), "arm stock: `losslessness.ar_identical`"),
    (put("arms", 1, "losslessness", "mismatches", value=1), "arm stock: `losslessness.mismatches`"),
    (put("losslessness", value=None), "`losslessness` is missing"),
    (put("losslessness", "stock_verdict", value="near-tie"), "`losslessness.stock_verdict` is near-tie"),
    (put("losslessness", "tokens", value=10**6), "`losslessness.tokens` is 1000000"),
    (put("losslessness", "distinct_positions", value=10**6), "`losslessness.distinct_positions`"),
    (put("losslessness", "margin", "value", value=9.0), "`losslessness.margin.value` is 9.0, measured here"),
    (put("losslessness", "margin", "blind_share", value=0.001), "`losslessness.margin.blind_share`"),
    (
        put("losslessness", "stock_noise", "disagreements", value=20),
        "`losslessness.stock_noise.disagreements`",
    ),
    (put("losslessness", "rate_test", "p_value", value=0.9), "`losslessness.rate_test.p_value`"),
    (put("losslessness", "error_bound", value=1e-9), "`losslessness.error_bound`"),
    (put("losslessness", "statement", value="Lossless, always."), "`losslessness.statement`"),
    (put("plan", "hash", value="0" * 64), "`plan.hash`"),
    (put("job", "plan", "measure", "launches", value=9), "`job` is not the one in job.json"),
    (put("label", value="smoke"), "`label` is 'smoke', the plan says 'full'"),
    (put("division", value="distribution"), "`division` is 'distribution'"),
    (put("name", value="better"), "`name` is 'better'"),
    (put("schema_version", value=2), "`schema_version` is 2"),
    (put("reasons", value=["busy"]), "`status` is valid with 1 reasons"),
    (put("sets", 0, "drawn", value=4), "`sets` counts prompts as {'own': 4}"),
]


@pytest.mark.parametrize(("forge", "match"), FORGERIES, ids=[match for _, match in FORGERIES])
def test_a_forged_claim_is_named(folder: RunFolder, tiny: TinyRun, forge: Forge, match: str) -> None:
    edit_report(folder, forge)
    problems = check(folder, tiny)
    assert any(match in problem for problem in problems), problems


def test_a_forged_margin_cannot_hide_a_violation(folder: RunFolder, tiny: TinyRun) -> None:
    ids = list(read_lines(folder.responses, Response))[STOCK_RESPONSE].token_ids
    wrong = (*ids[:-1], (ids[-1] + 1) % 256)
    edit_response(folder, STOCK_RESPONSE, token_ids=wrong, text=None)

    def forge(report: dict[str, Any]) -> None:
        report["losslessness"]["margin"] |= {"value": 1e6, "quantile": 5e5, "largest": 5e5}
        report["losslessness"] |= {"stock_verdict": "near-tie", "mismatches": 1, "near_ties": 1}
        report["arms"][1]["losslessness"] |= {"stock_verdict": "near-tie", "mismatches": 1, "near_ties": 1}

    edit_report(folder, forge)
    for calibrated in (True, False):
        problems = check(folder, tiny, calibrated=calibrated)
        assert any("`losslessness.margin.value` is 1" in problem for problem in problems)
        assert problems[-1].startswith("Violated: arm stock, prompt own/1")


def test_claims_of_another_machine_may_differ_in_near_ties_but_not_in_tokens(
    folder: RunFolder, tiny: TinyRun
) -> None:
    def elsewhere(report: dict[str, Any]) -> None:
        report["losslessness"]["scorer"]["device"] = "another processor"
        report["losslessness"] |= {"stock_verdict": "near-tie", "mismatches": 2, "near_ties": 2}
        report["losslessness"]["margin"]["value"] *= 1.5

    edit_report(folder, elsewhere)
    assert check(folder, tiny) == ()
    edit_report(folder, put("losslessness", "tokens", value=1))
    assert any("`losslessness.tokens` is 1" in problem for problem in check(folder, tiny))


def test_a_boast_is_refused_on_any_machine(folder: RunFolder, tiny: TinyRun) -> None:
    job = msgspec.structs.replace(tiny.job, plan=msgspec.structs.replace(tiny.job.plan, division="system"))
    write_atomic(folder.job, canonical_json(job))

    def forge(report: dict[str, Any]) -> None:
        report["losslessness"]["scorer"]["device"] = "another processor"

    edit_report(folder, forge)
    problems = check(folder, tiny)
    assert any("`losslessness.statement` is" in problem for problem in problems)


def test_an_invalid_report_must_not_carry_a_speedup(folder: RunFolder, tiny: TinyRun) -> None:
    edit_report(folder, lambda report: report.update(status="invalid", reasons=["busy"]))
    problems = check(folder, tiny)
    assert any("arm stock: `speedup` is {" in problem and "give None" in problem for problem in problems)


def test_a_failed_request_makes_a_valid_status_false(folder: RunFolder, tiny: TinyRun) -> None:
    gone = {"token_ids": (), "steps": (), "end_ns": None, "first_token_ns": None, "finish_reason": None}
    edit_response(
        folder, STOCK_RESPONSE, status="failed", error="refused", text=None, prefill_tokens=0, **gone
    )
    assert any("`status` is valid, but 1 requests failed" in problem for problem in check(folder, tiny))


def test_a_run_that_is_violated_fails_even_if_it_says_so(folder: RunFolder, tiny: TinyRun) -> None:
    ids = list(read_lines(folder.responses, Response))[STOCK_RESPONSE].token_ids
    edit_response(folder, STOCK_RESPONSE, token_ids=(*ids[:-1], (ids[-1] + 1) % 256), text=None)
    judged = tiny.judge(list(read_lines(folder.responses, Response)))

    def confess(report: dict[str, Any]) -> None:
        report["losslessness"] = msgspec.to_builtins(judged.overall)
        for arm in report["arms"]:
            arm["losslessness"] = msgspec.to_builtins(judged.arms[arm["name"]])

    edit_report(folder, confess)
    problems = check(folder, tiny)
    assert all("report.json" not in problem for problem in problems)
    assert problems[-1].startswith("Violated")


@pytest.mark.parametrize("name", ["report_json", "job", "prompts", "responses"])
def test_a_missing_file_is_named(folder: RunFolder, tiny: TinyRun, name: str) -> None:
    path = getattr(folder, name)
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        check(folder, tiny)
