"""The gate: red on one token or step count, green on a slower machine; times only on a GPU of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from harness.cli import build_parser, main
from harness.codec import canonical_json, from_json
from harness.errors import DataError, UsageError
from harness.gate.golden import Golden, differences, golden_of, load_golden, write_golden
from harness.gate.timing import compare_times, why_not_timed
from harness.oracle.stored import StoredRun, load_run
from harness.paths import RunFolder
from harness.plan import load_job
from harness.records import DecodeStep, Response
from harness.storage import read_lines, write_atomic, write_lines

ROOT = Path(__file__).parents[3]
REPORT = ROOT / "reports" / "2026-12-02-reproduce-cpu"


@pytest.fixture(scope="module")
def run() -> StoredRun:
    return load_run(REPORT)


@pytest.fixture
def golden(run: StoredRun, tmp_path: Path) -> Path:
    path = tmp_path / "golden.json"
    write_golden(path, golden_of(run))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """The committed run, free to be changed."""
    return RunFolder(Path(shutil.copytree(REPORT, tmp_path / "run")))


def change(folder: RunFolder, edit: Callable[[Response], Response], arm: str = "stock") -> None:
    """Change the arm's responses to its first prompt, in every launch and block."""
    lines = list(read_lines(folder.responses, Response))
    first = next(r.prompt_id for r in lines if r.arm == arm)
    write_lines(folder.responses, [edit(r) if (r.arm, r.prompt_id) == (arm, first) else r for r in lines])


def one_token(response: Response) -> Response:
    ids = list(response.token_ids)
    ids[5] += 1
    return replace(response, token_ids=tuple(ids))


def one_step(response: Response) -> Response:
    """The same tokens; one more drafted."""
    first, *rest = response.steps
    more = DecodeStep(
        num_draft_tokens=first.num_draft_tokens + 1,
        num_accepted_tokens=first.num_accepted_tokens,
        num_emitted_tokens=first.num_emitted_tokens,
        at_ns=first.at_ns,
    )
    return replace(response, steps=(more, *rest))


def slower(response: Response) -> Response:
    ten = [replace(step, at_ns=10 * step.at_ns) for step in response.steps]
    assert response.end_ns is not None
    assert response.first_token_ns is not None
    times = {"end_ns": 10 * response.end_ns, "first_token_ns": 10 * response.first_token_ns}
    return replace(response, steps=tuple(ten), **times)


def test_the_same_run_passes(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", str(golden), str(REPORT)]) == 0
    told = capsys.readouterr().out
    assert "gate passed" in told
    assert "times: -" in told


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (one_token, "position 5: token"),
        (one_step, "num_draft_tokens"),
    ],
)
def test_one_changed_token_or_step_count_fails(
    golden: Path,
    folder: RunFolder,
    edit: Callable[[Response], Response],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(folder, edit)
    assert main(["gate", str(golden), str(folder.root), "--github"]) == 1
    told = capsys.readouterr().out
    assert words in told
    assert "::error title=gate counts::arm stock, prompt" in told
    assert "GATE FAILED" in told


def test_a_slower_machine_passes(golden: Path, folder: RunFolder) -> None:
    write_lines(folder.responses, [slower(r) for r in read_lines(folder.responses, Response)])
    assert main(["gate", str(golden), str(folder.root)]) == 0


def test_steps_that_only_come_in_another_order_are_other_steps(run: StoredRun) -> None:
    golden = golden_of(run)
    arm = next(arm for arm in golden.arms if arm.name == "stock")
    prompts = (replace(arm.prompts[0], steps_sha256="0" * 64), *arm.prompts[1:])
    arms = tuple(replace(a, prompts=prompts) if a.name == "stock" else a for a in golden.arms)
    (problem,) = differences(golden, replace(golden, arms=arms))
    assert problem.endswith("the same counts in all, but other steps")


@pytest.mark.parametrize("verdict", ["violated", "not-judged"])
def test_a_run_that_is_not_lossless_fails(
    golden: Path, folder: RunFolder, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = msgspec.json.decode(folder.report_json.read_bytes())
    plain["arms"][1]["losslessness"]["stock_verdict"] = verdict
    write_atomic(folder.report_json, msgspec.json.encode(plain))
    assert main(["gate", str(golden), str(folder.root)]) == 1
    assert "losslessness: FAILED" in capsys.readouterr().out


def test_a_failed_audit_fails(golden: Path, folder: RunFolder) -> None:
    plain = msgspec.json.decode(folder.report_json.read_bytes())
    plain["audits"][0]["passed"] = False
    write_atomic(folder.report_json, msgspec.json.encode(plain))
    assert main(["gate", str(golden), str(folder.root)]) == 1


def test_other_prompts_or_sampling_are_another_run(run: StoredRun) -> None:
    golden = golden_of(run)
    other = replace(golden, sampling=replace(golden.sampling, max_tokens=65))
    (problem,) = differences(golden, other)
    assert problem.startswith("`sampling` is")


def test_sampled_runs_failed_requests_and_unsteady_arms_are_no_golden(run: StoredRun) -> None:
    hot = replace(
        run.job, plan=replace(run.job.plan, sampling=replace(run.job.plan.sampling, temperature=1.0))
    )
    with pytest.raises(UsageError, match="only greedy runs"):
        golden_of(run._replace(job=hot))
    with pytest.raises(DataError, match=r"of 4 requests succeeded"):
        golden_of(run._replace(responses=run.responses[1:]))
    with pytest.raises(DataError, match="does not repeat itself"):
        golden_of(run._replace(responses=(one_token(run.responses[0]), *run.responses[1:])))


def test_a_golden_reads_back_as_it_was_written(run: StoredRun, golden: Path) -> None:
    assert load_golden(golden) == golden_of(run)
    assert from_json(canonical_json(golden_of(run)), Golden, "here") == golden_of(run)
    assert len(golden.read_text().splitlines()) > len(run.prompts)


def timed(run: StoredRun, *, gpu: str = "NVIDIA H200", factor: float = 1.0, arm: str = "stock") -> StoredRun:
    """The run as if on a GPU of its own, one arm's time multiplied."""
    plan = replace(run.job.plan, measure=replace(run.job.plan.measure, dedicated_gpu=True))
    report = replace(run.report, environment={"gpus": [{"name": gpu}]}, status="valid")
    responses: Sequence[Response] = [
        replace(r, end_ns=int((r.end_ns or 0) * factor)) if r.arm == arm else r for r in run.responses
    ]
    return run._replace(job=replace(run.job, plan=plan), report=report, responses=tuple(responses))


def wavering(run: StoredRun) -> StoredRun:
    """Other noise than the run's own: half a percent, by prompt and block."""
    noisy = [
        replace(r, end_ns=int((r.end_ns or 0) * (1.0 + 0.005 * ((hash_of(r) % 3) - 1))))
        for r in run.responses
    ]
    return run._replace(responses=tuple(noisy))


def hash_of(response: Response) -> int:
    return sum(response.prompt_id.encode()) + 7 * response.block + 3 * response.launch


def test_times_decide_only_on_the_same_gpu_that_nobody_shares(run: StoredRun) -> None:
    assert "holds no times" in str(why_not_timed(None, timed(run)))
    assert "dedicated_gpu" in str(why_not_timed(run, timed(run)))
    assert "NVIDIA H100" in str(why_not_timed(timed(run, gpu="NVIDIA H100"), timed(run)))
    invalid = timed(run)._replace(report=replace(timed(run).report, status="invalid", reasons=("busy",)))
    assert "busy" in str(why_not_timed(timed(run), invalid))
    assert why_not_timed(timed(run), timed(run)) is None


@pytest.mark.parametrize(
    ("factor", "passed", "word"), [(1.0, True, "no slower"), (1.2, False, "slower"), (0.9, True, "no slower")]
)
def test_a_slowdown_beyond_the_margin_fails(run: StoredRun, factor: float, passed: bool, word: str) -> None:
    after = wavering(timed(run, factor=factor))
    found = {one.arm: one for one in compare_times(timed(run), after, 0.03)}["stock"]
    assert found.passed is passed
    assert found.detail.startswith(word)


def test_a_machine_that_is_slower_as_a_whole_is_no_slowdown(run: StoredRun) -> None:
    after = wavering(timed(run))
    slow = after._replace(responses=tuple(slower(r) for r in after.responses))
    assert all(one.passed for one in compare_times(timed(run), slow, 0.03))


def test_the_example_workflow_calls_commands_that_exist() -> None:
    text = (ROOT / "harness" / "gate" / "github-action.yml").read_text(encoding="utf-8")
    lines = [line.split("run: ", 1)[1] for line in text.splitlines() if "run: specpilot-harness" in line]
    assert len(lines) == 2
    for line in lines:
        words = line.split(" || ")[0].split()[1:]
        assert build_parser().parse_args(words).run is not None


def test_the_committed_golden_is_that_of_the_plan_for_gates() -> None:
    golden, plan = load_golden(ROOT / "tests" / "golden" / "gate-cpu.json"), load_job("gate-cpu").plan
    assert golden.sampling == plan.sampling
    assert [(arm.name, arm.params) for arm in golden.arms] == [(arm.name, arm.params) for arm in plan.arms]
    drafted = {arm.name: sum(prompt.num_draft_tokens for prompt in arm.prompts) for arm in golden.arms}
    assert drafted["ar"] == 0 < min(drafted["dflash"], drafted["ngram"])
    assert all(len(arm.prompts) == plan.sets[0].count for arm in golden.arms)
