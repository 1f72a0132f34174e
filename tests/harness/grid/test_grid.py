"""The grid: what it holds, what fits where, what is refused on another GPU, and how it resumes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness.cli import build_parser
from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun, ModelError, UsageError
from harness.grid.commands import run as reproduce_command
from harness.grid.jobs import Pins, TooLarge, needed_bytes, server_jobs, tune_job
from harness.grid.preflight import HubRepo, Machine, preflight
from harness.grid.records import Cell, cells, load_grid
from harness.grid.running import planned
from harness.grid.tuning import Setting, draft_lengths, tune
from harness.oracle.stored import StoredRun, load_run
from harness.paths import RunFolder
from harness.plan import Job, StatsSpec
from harness.results import PlanRef, Report
from harness.storage import write_atomic, write_lines

REPORT = Path(__file__).parents[3] / "reports" / "2026-12-02-compare-vllm-h200" / "managed-float32"
GRID = load_grid()
H100, H200 = Machine((("NVIDIA H100 80GB HBM3", 80 * 10**9),), 10**12, "0.32.0"), "NVIDIA H200"
SHA = "a" * 40


class FakeHub:
    """Every repository is there, ten gigabytes each, but those that are closed."""

    def __init__(self, *closed: str) -> None:
        self.closed, self.looked, self.fetched = closed, [], []  # type: tuple[str, ...], list[str], list[str]

    def look(self, repo: str, revision: str | None) -> HubRepo:
        self.looked.append(repo)
        if repo in self.closed:
            raise ModelError(f"cannot read {repo}: gated")
        return HubRepo(revision or SHA, 10**10)

    def fetch(self, repo: str, sha: str) -> Path:
        self.fetched.append(repo)
        return Path("/models") / repo


class PinsOfAll(dict[str, str]):
    def __missing__(self, repo: str) -> str:
        return SHA


PINS = Pins(PinsOfAll())


def one(only: str) -> Cell:
    (cell,) = cells(GRID, only)
    return cell


def test_the_grid_is_whole() -> None:
    assert [target.name for target in GRID.targets] == [
        "qwen3-8b",
        "llama-3.1-8b",
        "qwen3.6-27b",
        "qwen3.8-27b",
    ]
    for target in GRID.targets:
        assert {"dflash", "dflash2", "dspark"} <= {drafter.name for drafter in target.drafters}
    assert {gpu.name for gpu in GRID.gpus} == {"h100", "h200", "rtx-pro-6000"}
    assert len(cells(GRID)) == 4 * 4 * 5 * 2
    assert all(d.mechanism is None for t in GRID.targets for d in t.drafters if d.name == "mtp")


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("qwen3-8b", 40),
        ("qwen3-8b/dflash", 10),
        ("*/mtp", 20),
        ("qwen3-8b/dflash/gsm8k", 2),
        ("qwen3-8b/dflash/gsm8k/single", 1),
    ],
)
def test_only_takes_a_part_of_it(only: str, count: int) -> None:
    assert len(cells(GRID, only)) == count


@pytest.mark.parametrize(
    ("only", "words"),
    [("qwen9", "no 'qwen9'; there are"), ("a/b/c/d/e", "write TARGET"), ("llama-3.1-8b/mtp", "no such comb")],
)
def test_a_part_that_is_not_there_is_named(only: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cells(GRID, only)


def test_every_published_cell_makes_plans_that_load_and_say_stock_both_ways() -> None:
    h200 = GRID.gpu("h200")
    for cell in cells(GRID, "*/*/gsm8k"):
        if not cell.drafter.published:
            continue
        found = planned(cell, h200, PINS)
        for run in found:
            assert from_json(canonical_json(run.job), Job, "job") == run.job
            assert run.job.plan.measure.dedicated_gpu
            assert run.seconds > 0.0
        servers = [run.job for run in found if run.part == "servers"]
        arms = [arm for job in servers for arm in job.plan.arms]
        assert {"ar", "stock", "tuned"} <= {arm.name for arm in arms}
        assert all(run.job.plan.sets[0].name == "embedded" for run in found if run.part == "tune")
        assert any(run.part == "mechanisms" for run in found) == (cell.drafter.mechanism is not None)
        enough = 3 * 5 * cell.regime.prompts
        assert enough >= 200
        assert all(job.plan.label == "full" for job in servers)


def test_the_released_config_is_pinned_and_every_arm_gets_the_same_memory() -> None:
    (job,) = [
        run.job
        for run in server_jobs(one("qwen3-8b/eagle3/gsm8k/single"), GRID.gpu("h200"), PINS, Setting(5))
    ]
    words = {arm.name: shlex.split(str(arm.params["arguments"])) for arm in job.plan.arms}
    shares = {name: own[own.index("--gpu-memory-utilization") + 1] for name, own in words.items()}
    assert set(shares.values()) == {"0.3"}
    config = json.loads(words["stock"][words["stock"].index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == 3
    assert config["revision"] == SHA
    tuned = json.loads(words["tuned"][words["tuned"].index("--speculative-config") + 1])
    assert tuned == {**config, "num_speculative_tokens": 5}
    assert "--speculative-config" not in words["ar"]


def test_arms_that_do_not_fit_together_get_an_ar_of_their_own_and_too_large_ones_are_told() -> None:
    cell = one("qwen3.6-27b/dflash/gsm8k/single")
    runs = server_jobs(cell, GRID.gpu("h200"), PINS, Setting(5))
    assert [run.name for run in runs] == ["servers-stock", "servers-tuned"]
    assert all(run.job.plan.arms[0].name == "ar" for run in runs)
    assert needed_bytes(cell, 2) > 80 * 10**9
    with pytest.raises(TooLarge, match="need 120 GB, h100 has 80 GB"):
        tune_job(cell, GRID.gpu("h100"), PINS, Setting(5))


def test_another_gpu_is_refused_before_the_hub_is_asked() -> None:
    hub = FakeHub()
    found = preflight(cells(GRID, "qwen3-8b"), GRID.gpu("h100"), H100._replace(gpus=((H200, 1),)), hub)
    assert not found.ok
    assert "this machine has NVIDIA H200; this reproduces on H100" in found.checks[0].detail
    assert not hub.looked


@pytest.mark.parametrize(
    ("machine", "hub", "what"),
    [
        (H100, FakeHub("Qwen/Qwen3-8B"), "hub Qwen/Qwen3-8B"),
        (H100._replace(free_disk=10**10), FakeHub(), "disk"),
        (H100._replace(vllm=None), FakeHub(), "vLLM"),
        (H100._replace(gpus=()), FakeHub(), "GPU"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(machine: Machine, hub: FakeHub, what: str) -> None:
    found = preflight([one("qwen3-8b/dflash/gsm8k/single")], GRID.gpu("h100"), machine, hub)
    assert [check.what for check in found.checks if not check.ok] == [what]


class FakeRuns:
    """In place of measuring: a committed run under the job's names; k = 5 is the fastest, unless told."""

    def __init__(self, fastest: str = "tune-k5", broken: str = "") -> None:
        self.fastest, self.broken = fastest, broken
        self.run: StoredRun = load_run(REPORT)
        self.jobs: list[tuple[str, str]] = []

    def __call__(self, job: Job, out: Path, mode: str) -> Report:
        self.jobs.append((out.name, mode))
        if out.name == self.broken:
            raise InvalidRun("the server did not start")
        kept = {"ar": "ar", "null": "ar"}
        lines = [
            replace(line, prompt=replace(line.prompt, set_name=job.plan.sets[0].name))
            for line in self.run.prompts
        ]
        responses = [
            replace(r, arm=arm.name)
            for arm in job.plan.arms
            for r in self.run.responses
            if r.arm == kept.get(arm.name, "stock")
        ]
        results = {arm.name: arm for arm in self.run.report.arms}
        arms = []
        for arm in job.plan.arms:
            result = results[kept.get(arm.name, "stock")]
            rate = result.tokens_per_second
            if out.name.startswith("tune-k"):
                rate = 200.0 if out.name == self.fastest else 190.0 if out.name == "tune-k5" else 150.0
            arms.append(
                replace(
                    result,
                    name=arm.name,
                    kind=arm.kind,
                    backend=arm.backend,
                    params=arm.params,
                    tokens_per_second=rate,
                )
            )
        report = replace(
            self.run.report,
            job=replace(job, plan=replace(job.plan, stats=StatsSpec(resamples=200))),
            name=job.plan.name,
            label=job.plan.label,
            plan=PlanRef(name=job.plan.name, hash=job.hash),
            arms=tuple(arms),
            backends={},
        )
        folder = RunFolder(out)
        write_lines(folder.prompts, lines)
        write_lines(folder.responses, responses)
        write_atomic(folder.job, canonical_json(job))
        write_atomic(folder.report_json, canonical_json(report))
        return report


def test_draft_length_graphs_and_attention_are_tuned_one_after_another() -> None:
    """Each at the best so far; what gives no valid run is passed over."""
    drafter = one("qwen3-8b/eagle3/gsm8k/single").drafter
    speeds = {"k2": 3.0, "k2-piecewise": 4.0, "k2-piecewise-triton_attn": 5.0}

    def measure(setting: Setting) -> float | None:
        return None if "flashinfer" in setting.name else speeds.get(setting.name, 1.0)

    best, tried = tune(drafter, measure)
    assert best == Setting(2, "PIECEWISE", "TRITON_ATTN")
    assert [setting.name for setting in tried] == [
        *("k1", "k2", "k3", "k2-full_decode_only", "k2-piecewise"),
        *("k2-piecewise-flash_attn", "k2-piecewise-flashinfer", "k2-piecewise-triton_attn"),
    ]
    assert tried[Setting(2, "PIECEWISE", "FLASHINFER")] is None
    assert [setting.drafts for setting in draft_lengths(drafter)] == [1, 2, 3]
    assert tune(drafter, lambda setting: None)[0] is None


def test_tuned_graphs_and_attention_are_those_of_the_plain_server_beside_it() -> None:
    cell, tuned = one("qwen3-8b/eagle3/gsm8k/single"), Setting(2, "PIECEWISE", "TRITON_ATTN")
    runs = {run.name: run.job for run in server_jobs(cell, GRID.gpu("h200"), PINS, tuned)}
    assert list(runs) == ["servers-stock", "servers-tuned"]
    for arm in runs["servers-tuned"].plan.arms:
        words = shlex.split(str(arm.params["arguments"]))
        assert words[words.index("--attention-backend") + 1] == "TRITON_ATTN"
        assert json.loads(words[words.index("--compilation-config") + 1]) == {"cudagraph_mode": "PIECEWISE"}
    for arm in runs["servers-stock"].plan.arms:
        assert "--attention-backend" not in str(arm.params["arguments"])


Call = Callable[..., int]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    def do(
        *arguments: str,
        machine: Machine = H100,
        measure: Any = None,
        bench: Callable[[Sequence[str]], int] = lambda words: 0,
    ) -> int:
        words = ["reproduce", "h100", "--out", str(tmp_path / "out"), *arguments]
        options = build_parser().parse_args(words)
        return reproduce_command(options, machine, FakeHub(), measure or FakeRuns(), bench)

    return do


def test_a_cell_is_tuned_measured_and_held_against_the_paper(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = FakeRuns()
    only = ("--only", "qwen3-8b/dflash/gsm8k/single")
    assert call(*only, measure=runs) == 0
    told = capsys.readouterr().out
    assert "will download 20.0 GB and make" in told
    assert "stock tuned to 5 drafts, graphs by default, attention by default; released with 15 drafts" in told
    names = [name for name, _ in runs.jobs]
    assert names[-2:] == ["servers", "mechanisms"]
    assert names[:7] == [f"tune-k{k}" for k in (1, 2, 3, 5, 7, 10, 15)]
    assert all(name.startswith("tune-k5-") for name in names[7:-2])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (cell,) = summary["cells"]
    claims = {(claim["claim"], claim["arm"]): claim for claim in cell["claims"]}
    refuted = claims["single", "stock"]
    assert refuted["verdict"] == "refuted"
    assert any(word.startswith("target=Qwen/Qwen3-8B") for word in refuted["assumed"])
    assert summary["pins"]["Qwen/Qwen3-8B"] == SHA
    again = FakeRuns()
    assert call(*only, measure=again) == 0
    assert not again.jobs  # finished runs are read


def test_a_setting_that_does_not_start_is_passed_over_and_the_fastest_is_told(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = FakeRuns("tune-k5-triton_attn", broken="tune-k5-flashinfer")
    assert call("--only", "qwen3-8b/dflash/gsm8k/single", measure=runs) == 0
    assert "tuned to 5 drafts, graphs by default, attention TRITON_ATTN;" in capsys.readouterr().out
    (told,) = (tmp_path / "out" / "tuning").rglob("tuning.json")
    found = json.loads(told.read_text())
    assert found["chosen"] == "k5-triton_attn"
    assert found["tokens_per_second"]["k5-flashinfer"] is None
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["cells"][0]["tuned"] == {"drafts": 5, "graphs": None, "attention": "TRITON_ATTN"}
    with pytest.raises(InvalidRun, match="did not start"):
        call("--only", "qwen3-8b/eagle3/gsm8k/single", measure=FakeRuns(broken="tune-k2"))


def test_an_interrupted_run_is_continued_and_keeps_its_models(call: Call, tmp_path: Path) -> None:
    class Breaks(FakeRuns):
        def __call__(self, job: Job, out: Path, mode: str) -> Report:
            if out.name == "tune-k3" and mode == "new":
                write_atomic(RunFolder(out).job, canonical_json(job))
                raise KeyboardInterrupt
            return super().__call__(job, out, mode)

    only = ("--only", "qwen3-8b/dflash/gsm8k/single")
    with pytest.raises(KeyboardInterrupt):
        call(*only, measure=Breaks())
    pins = tmp_path / "out" / "pins.json"
    pins.write_text(json.dumps({**json.loads(pins.read_text()), "Qwen/Qwen3-8B": "b" * 40}))
    resumed = Breaks()
    with pytest.raises(UsageError, match="holds a run of another plan"):
        call(*only, measure=resumed)  # other models: what is there is not theirs
    pins.write_text(json.dumps({"Qwen/Qwen3-8B": SHA}))
    assert call(*only, measure=resumed) == 0
    assert resumed.jobs[0] == ("tune-k3", "resume")


def test_unpublished_drafters_and_large_targets_are_told(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--only", "qwen3-8b/dflash2/gsm8k/single") == 0
    assert "not published: no dflash2 is published for qwen3-8b" in capsys.readouterr().out
    assert call("--only", "qwen3.8-27b/mtp/gsm8k/single", "--dry-run") == 0
    assert "does not fit: qwen3.8-27b/mtp" in capsys.readouterr().out


def test_on_another_gpu_nothing_is_measured_and_no_number_is_given(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = FakeRuns()
    other = H100._replace(gpus=((H200, 141 * 10**9),))
    assert call(machine=other, measure=runs) == 2
    assert call("--system-only", machine=other, measure=runs) == 2
    told = capsys.readouterr().out
    assert "INVALID: this machine has NVIDIA H200" in told
    assert "hours" not in told
    assert not runs.jobs
    assert not (tmp_path / "out").exists()


def test_system_only_times_shapes_and_downloads_nothing(call: Call, tmp_path: Path) -> None:
    benched: list[Sequence[str]] = []

    def bench(words: Sequence[str]) -> int:
        benched.append(words)
        return 0

    assert call("--system-only", bench=bench) == 0
    assert [words[1] for words in benched] == ["Llama-3.1-8B", "Qwen3-8B"]
    assert build_parser().parse_args(["engine", "bench", *benched[0]]).run is not None
