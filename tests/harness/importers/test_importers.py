"""What each tool's file says is read; what it does not say stays unknown; and the four headlines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.claims.records import load_claim
from harness.cli import main
from harness.errors import DataError, UndefinedMetric
from harness.importers.detect import read_result
from harness.importers.headlines import headlines
from tests.harness.importers import files
from tests.harness.tiny import write_tokenizer

Writer = Callable[[Path, tuple[float, ...]], Path]


def spec_file(path: Path, seconds: tuple[float, ...]) -> Path:
    return files.spec_bench(path, seconds, steps=seconds == files.SPEC_SECONDS)


WRITERS: list[Any] = [
    pytest.param(spec_file, "spec-bench", id="spec-bench"),
    pytest.param(files.serving, "vllm-bench", id="vllm"),
    pytest.param(files.sglang, "sglang-bench", id="sglang"),
    pytest.param(files.guidellm, "guidellm", id="guidellm"),
    pytest.param(files.aiperf, "aiperf", id="aiperf"),
]


@pytest.mark.parametrize(("write", "tool"), WRITERS)
def test_the_same_data_gives_the_same_four_headlines_from_every_tool(
    write: Writer, tool: str, tmp_path: Path
) -> None:
    base = read_result(write(tmp_path / "base", files.BASE_SECONDS))
    spec = read_result(write(tmp_path / "spec", files.SPEC_SECONDS))
    assert spec.tool == tool
    assert (spec.completed, spec.output_tokens) == (3, 2100)
    found = headlines(base, spec)
    assert (found.requests, found.token_difference) == (3, 0)
    shown = {one.used_by: round(one.speedup, 2) for one in found.found}
    assert shown == {
        "this harness": 0.83,  # 21 s against 25.4 s: slower
        "Spec-Bench, EAGLE": 1.93,
        "dflash": 1.46,
        "this harness, second": 1.71,
    }


def test_acceptance_length_is_not_one_number(tmp_path: Path) -> None:
    base = read_result(files.spec_bench(tmp_path / "b", files.BASE_SECONDS, steps=False))
    spec = read_result(files.spec_bench(tmp_path / "s", files.SPEC_SECONDS, steps=True))
    lengths = headlines(base, spec).lengths
    assert lengths is not None
    assert lengths.steps_alike == pytest.approx((100 + 40) / 108)
    assert lengths.requests_alike == pytest.approx(11 / 3)


def test_re_tokenising_the_baseline_alone_moves_the_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs with the very same times are no speedup; the counting alone makes one."""
    base = files.spec_bench(tmp_path / "b", files.BASE_SECONDS, steps=False, texts="short")
    folder = write_tokenizer(tmp_path / "tokenizer")
    arguments = ["import", str(base), "--baseline", str(base), "--tokenizer", str(folder), "--json"]
    assert main(arguments) == 0
    found = {one["used_by"]: one["speedup"] for one in json.loads(capsys.readouterr().out)["headlines"]}
    assert found["Spec-Bench, EAGLE"] == 1.0
    rates = [2000 / 20.0, 50 / 0.5, 50 / 0.5]
    own = [7 / 20.0, 7 / 0.5, 7 / 0.5]  # "short 0" is seven byte tokens and BOS, less one
    assert found["Spec-Bench's speed.py"] == pytest.approx(sum(rates) / sum(own))


@pytest.mark.parametrize(
    ("write", "known", "unknown"),
    [
        (
            files.serving,
            {"model": "Qwen/Qwen3-8B", "engine": "vllm", "concurrency": 1, "failed": 0},
            {"gpu", "temperature", "dataset", "acceptance_length", "request_rate", "tool_version"},
        ),
        (
            files.sglang,
            {"engine": "sglang", "acceptance_length": 3.25, "dataset": "sharegpt"},
            {"model", "gpu", "temperature", "failed"},
        ),
        (
            files.guidellm,
            {"model": "Qwen/Qwen3-8B", "concurrency": 4, "tool_version": "0.8.0"},
            {"gpu", "engine", "dataset", "temperature", "acceptance_length"},
        ),
        (files.aiperf, {"failed": 1, "duration_s": 25.0}, {"model", "concurrency", "gpu"}),
        (spec_file, {"model": "vicuna-7b-v1.3", "concurrency": 1}, {"gpu", "temperature", "failed"}),
    ],
)
def test_what_a_file_says_is_read_and_the_rest_stays_unknown(
    write: Writer, known: dict[str, object], unknown: set[str], tmp_path: Path
) -> None:
    found = read_result(write(tmp_path / "file", files.SPEC_SECONDS))
    assert {name: getattr(found, name) for name in known} == known
    assert unknown <= set(found.unknown)


def test_the_summary_of_aiperf_names_the_gpu_and_the_steps_weighed_length(tmp_path: Path) -> None:
    found = read_result(files.aiperf_summary(tmp_path / "summary.json"))
    assert (found.gpu, found.model, found.concurrency) == ("NVIDIA H200", "Qwen/Qwen3-8B", 8)
    assert found.acceptance_length == 2.9
    assert found.throughput == pytest.approx(19370 / 15.5)


def test_other_prompts_are_not_paired(tmp_path: Path) -> None:
    base = read_result(files.serving(tmp_path / "b", files.BASE_SECONDS, input_lens=[1, 2, 3]))
    spec = read_result(files.serving(tmp_path / "s", files.SPEC_SECONDS))
    with pytest.raises(UndefinedMetric, match="share no request"):
        headlines(base, spec)


def test_a_failed_request_is_left_out_on_both_sides(tmp_path: Path) -> None:
    base = read_result(files.serving(tmp_path / "b", files.BASE_SECONDS))
    spec = read_result(files.serving(tmp_path / "s", files.SPEC_SECONDS, errors=["", "timeout", ""]))
    found = headlines(base, spec)
    assert (found.requests, found.left_out) == (2, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "holds no JSON object"),
        ('{"hello": 1}', "written by none of vllm-bench"),
        ("not json", "line 1: no JSON"),
        (
            '{"output_throughput": 1, "burstiness": 1, "output_lens": [1], "ttfts": [1, 2]}',
            "`ttfts` must be a",
        ),
        ('{"output_throughput": 1, "burstiness": 1, "duration": "long"}', "`duration` must be a number"),
        ('{"benchmarks": []}', "`benchmarks` is empty"),
        (
            '{"question_id": 1, "choices": [{"wall_time": [1.0], "new_tokens": []}]}',
            "question 1: `new_tokens`",
        ),
        (
            '{"question_id": 1, "choices": [{"wall_time": [1.0], "new_tokens": [1], "turns": ["ERROR"]}]}',
            "a turn is 'ERROR'",
        ),
    ],
)
def test_a_file_that_cannot_be_read_names_the_field(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r".*") as caught:
        read_result(path)
    assert words in str(caught.value)


def test_the_console_shows_four_headlines_and_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = files.serving(tmp_path / "b", files.BASE_SECONDS)
    spec = files.serving(tmp_path / "s", files.SPEC_SECONDS, spec_decode_acceptance_length=3.5)
    assert main(["import", str(spec), "--baseline", str(base)]) == 0
    told = capsys.readouterr().out
    assert "The same data, 4 headlines (3 requests in both, 0 left out)" in told
    assert "0.827x" in told
    assert "does not say: tool_version, gpu" in told
    assert "whole server's" in told


def test_an_imported_result_becomes_a_claim_that_can_be_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = files.serving(tmp_path / "b", files.BASE_SECONDS)
    spec = files.serving(tmp_path / "s", files.SPEC_SECONDS, spec_decode_acceptance_length=3.5)
    own = tmp_path / "claim.toml"
    assert main(["import", str(spec), "--baseline", str(base), "--claim", str(own), "--who", "them"]) == 0
    claim = load_claim(str(own)).claim
    assert (claim.target, claim.engine, claim.gpu) == ("Qwen/Qwen3-8B", "vllm", None)
    assert claim.figures[0].speedup == 0.8268
    assert claim.figures[0].acceptance_length == 3.5
    report = Path(__file__).parents[3] / "reports" / "2026-12-02-reproduce-cpu"
    capsys.readouterr()
    assert main(["verify-claim", str(own), "--report", str(report), "--arm", "stock"]) == 2
    assert "rule that decided: complete: the claim does not say drafter, gpu" in capsys.readouterr().out
