"""The claims of the package, and the command line on this project's own reports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.claims.facts import same_gpu
from harness.claims.records import built_in, load_claim, load_file
from harness.cli import main
from harness.errors import UsageError

REPORTS = Path(__file__).parents[3] / "reports"


@pytest.mark.parametrize(
    ("name", "report", "code", "verdict"),
    [
        ("true", "2026-12-02-reproduce-cpu", 0, "CONFIRMED"),
        ("inflated", "2026-12-02-compare-vllm-cpu", 1, "REFUTED"),
        ("elsewhere", "2026-12-02-compare-vllm-cpu", 2, "NOT COMPARABLE"),
        ("forced", "2026-12-02-compare-vllm-cpu", 2, "NOT COMPARABLE"),
    ],
)
def test_the_examples_end_as_they_say(
    name: str, report: str, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify-claim", f"examples/{name}", "--report", str(REPORTS / report)]) == code
    told = capsys.readouterr().out
    assert told.startswith(verdict)
    assert "rule that decided" in told


README = (REPORTS.parent / "harness" / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```\n\$ specpilot-harness (verify-claim .*)\n([\s\S]*?)\$ echo \$\?\n(\d)\n```", README)


@pytest.mark.parametrize(("command", "output", "code"), SHOWN, ids=[command for command, _, _ in SHOWN])
def test_the_readme_shows_what_the_command_prints(
    command: str,
    output: str,
    code: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(REPORTS.parent)
    assert main(command.split()) == int(code)
    assert capsys.readouterr().out == output


def test_the_readme_shows_every_verdict_and_a_refused_forced_acceptance() -> None:
    told = "".join(output for _, output, _ in SHOWN)
    assert all(word in told for word in ("CONFIRMED", "REFUTED", "NOT COMPARABLE", "INCONCLUSIVE"))
    assert "rule that decided: acceptance:" in told


def test_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    report = str(REPORTS / "2026-12-02-compare-vllm-cpu")
    assert main(["verify-claim", "examples/elsewhere", "--report", report, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["rule"], found["findings"]) == ("not comparable", "same system", [])


def test_every_claim_of_the_package_loads_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-claim", "--list"]) == 0
    listed = capsys.readouterr().out
    for name in built_in():
        for claim in load_file(name).claims:
            assert f"{name}/{claim.name}:" in listed
    assert {"paper", "dflash", "dflash2", "dspark", "eagle3", "radixark"} <= set(built_in())
    assert load_claim("paper/single").claim.figures[0].speedup == 10.87


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paper/twofold", "--report", "x"], "no claim 'paper/twofold'; there are paper/stock-single"),
        (["nobody/x", "--report", "x"], "no claims named 'nobody'"),
        (["paper/single"], "give --report DIR, or --stock URL"),
        ([], "which claim?"),
        (["paper/single", "--assume", "gpu", "--report", "x"], "write FIELD=VALUE"),
        (["dflash/qwen3-8b-t0", "--set", "mmlu", "--report", "x"], "--set mmlu: the claim has aime25"),
        (["paper/single", "--margin", "2", "--report", "x"], "--margin must lie between 0 and 1"),
    ],
)
def test_a_wrong_call_is_told_how_to_mend_it(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify-claim", *arguments]) == 3
    assert words in capsys.readouterr().err


def test_a_file_of_ones_own_names_the_field_that_is_wrong(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'schema = "claims/1"\nwho = "me"\nsource = "s"\nread = "source"\n'
        'claims = [{ name = "x", figure = [] }]'
    )
    with pytest.raises(UsageError, match="figures"):
        load_claim(str(own))


@pytest.mark.parametrize(
    ("told", "claimed", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA H200", "H100", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", True),
        ("NVIDIA RTX 6000 Ada Generation", "RTX PRO 6000", False),
        ("cpu", "cpu", True),
    ],
)
def test_gpus_are_compared_by_the_words_of_their_model(told: str, claimed: str, same: bool) -> None:
    assert same_gpu(told, claimed) is same
