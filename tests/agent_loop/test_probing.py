"""`loop ceiling` of a deployment: what is measured, what is left out, and how a wrong call is answered."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent_loop.cost_model import commands, probing
from agent_loop.cost_model.ceiling import ceiling
from agent_loop.executors.protocol import TrialFailed
from agent_loop.toml import to_toml
from agent_loop.watching import as_json
from harness.cli import main
from harness.errors import EXIT_OK, EXIT_USAGE, InvalidRun, UsageError
from harness.oracle.stored import StoredRun
from harness.plan import Job, load_deployment
from tests.agent_loop.simulated import Host
from tests.agent_loop.test_cost_model import FREE, MACHINE, MODEL, STOCK, run_of
from tests.harness.tiny import deployment_of, write_llama

HERE = Path(__file__).resolve().parents[2]
DEPLOYMENT = "smollm2-135m-cpu-f32"


def test_a_deployment_a_plan_and_a_campaign_have_a_stock(tmp_path: Path) -> None:
    plain = probing.stock_of(DEPLOYMENT, None, None)
    assert (plain.arm.backend, plain.arm.params) == (probing.BACKEND, {"drafter": "dflash"})
    planned = probing.stock_of("reproduce-cpu", None, None)
    assert planned.arm.params == {"drafter": "dflash", "drafts": 4}
    searched = probing.stock_of(str(HERE / "agent_loop/demo/first.toml"), None, None)
    assert searched.arm.params == {"drafter": "dflash", "tree": 48}
    named = probing.stock_of("h200-smollm2", None, None)
    assert (named.deployment.device, named.arm.params) == ("cuda", {"drafter": "dflash", "drafts": 7})
    given = probing.stock_of(DEPLOYMENT, "a:b", {"width": 2})
    assert (given.arm.backend, given.arm.params) == ("a:b", {"width": 2})
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(load_deployment(DEPLOYMENT)))
    assert probing.stock_of(str(file), None, None) == plain
    with pytest.raises(UsageError, match="no deployment named 'nothing'"):
        probing.stock_of("nothing", None, None)
    with pytest.raises(UsageError, match="cannot be read"):
        probing.stock_of(str(tmp_path / "none.toml"), None, None)
    with pytest.raises(UsageError, match="its arms are servers"):
        probing.stock_of("smollm2-135m-servers-f32", None, None)


def test_beside_stock_run_no_drafts_free_drafts_and_trees() -> None:
    job = probing.probe_job(probing.stock_of("reproduce-cpu", None, None), 2, 24)
    params = {arm.name: arm.params for arm in job.plan.arms}
    assert params == {
        "stock": {"drafter": "dflash", "drafts": 4},
        "ar": {"drafter": "none"},
        "null": {"drafter": "null", "drafts": 4},
        "tree-7": {"drafter": "dflash", "drafts": 4, "tree": 7},
        "tree-23": {"drafter": "dflash", "drafts": 4, "tree": 23},
        "tree-63": {"drafter": "dflash", "drafts": 4, "tree": 63},
    }
    assert job.plan.label == "smoke"
    other = probing.stock_of(DEPLOYMENT, "a:b", {"width": 2})
    assert [arm.name for arm in probing.probe_job(other, 2, 24).plan.arms] == ["stock"]


class Picky(Host):
    """Has no trees."""

    def measure(self, job: Job, folder: Path) -> StoredRun:
        self.runs.append((folder.name, len(job.plan.arms)))
        refused = next((arm.name for arm in job.plan.arms if "tree" in arm.params), None)
        if refused is not None:
            raise TrialFailed(f"specpilot-harness: launch 0: arms[{refused}].params: no trees here", 3)
        return self.run(job, "x")


def test_an_arm_that_the_backend_does_not_have_is_left_out(tmp_path: Path) -> None:
    job = probing.probe_job(probing.stock_of("reproduce-cpu", None, None), 2, 24)
    said: list[str] = []
    host = Picky(tmp_path, lambda params: 1.0)
    run = probing.run_probe(job, host, tmp_path, said.append)
    assert [arm.name for arm in run.job.plan.arms] == ["stock", "ar", "null"]
    (line,) = said  # they are refused alike: one is asked for all
    assert line.startswith("without tree-23, tree-63, tree-7: ")
    assert len(host.runs) == 2


def test_stock_itself_is_never_left_out(tmp_path: Path) -> None:
    stock = probing.stock_of("reproduce-cpu", None, {"drafter": "dflash", "tree": 4})
    host = Picky(tmp_path, lambda params: 1.0)
    with pytest.raises(InvalidRun, match=r"arms\[stock\].params: no trees here"):
        probing.run_probe(probing.probe_job(stock, 2, 24), host, tmp_path, lambda _: None)


@pytest.mark.model
def test_a_stored_run_is_told_with_the_peaks_of_an_earlier_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks, out = tmp_path / "peaks.json", tmp_path / "ceiling.json"
    peaks.write_bytes(as_json(ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL)))
    words = ["loop", "ceiling", str(HERE / "reports/2026-12-02-reproduce-cpu"), "--peaks", str(peaks)]
    assert main([*words, "--out", str(out)]) == EXIT_OK
    assert "at most" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["machine"] == json.loads(peaks.read_text())["machine"]
    assert {"prefill", "acceptance", "weights"} <= {gap["component"] for gap in found["gaps"]}
    assert sum(gap["share"] for gap in found["gaps"]) == pytest.approx(1.0)
    assert main([*words[:-1], str(tmp_path / "none.json")]) == EXIT_USAGE
    assert "--peaks" in capsys.readouterr().err


@pytest.mark.slow  # six processes that load torch; each part of it is tried by itself
def test_stock_of_a_deployment_is_measured_traced_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lock of its own: with the machine's it would wait for whatever is measured there.
    monkeypatch.setenv("SPECPILOT_CACHE_DIR", str(tmp_path / "cache"))
    model = write_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(config))  # the embedded prompts have a token for each byte
    deployment = deployment_of(model, context_length=2048)
    file, out = tmp_path / "mine.toml", tmp_path / "ceiling.json"
    file.write_text(to_toml(deployment))
    stock = json.dumps({"drafter": "ngram", "drafts": 2})
    words = ["loop", "ceiling", str(file), "--params", stock, "--prompts", "1", "--tokens", "16"]
    assert main([*words, "--work", str(tmp_path / "work"), "--out", str(out)]) == EXIT_OK
    told = capsys.readouterr()
    assert "at most" in told.out
    assert "without tree-23, tree-63, tree-7" in told.err  # n-gram drafts are chains
    found = json.loads(out.read_text())
    components = {gap["component"]: gap for gap in found["gaps"]}
    assert {"prefill", "acceptance", "weights", "attention", "sampling", "host", "launch"} <= set(components)
    assert sum(gap["share"] for gap in found["gaps"]) == pytest.approx(1.0)
    # The same folder again is read, not measured; its peaks may be used for another run.
    (run,) = [one.parent for one in (tmp_path / "work").rglob("report.json")]
    assert sorted(one.name for one in run.glob("report.*")) == ["report.json", "report.md"]  # no page
    assert main(["loop", "ceiling", str(run), "--peaks", str(out)]) == EXIT_OK
    assert "drafter" in capsys.readouterr().out  # fitted from the arms: there is no trace


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--params", "3"], "--params must be a JSON object"),
        (["--params", '{"a": [1]}'], "--params must be a JSON object"),
        (["--tokens", "0"], "--prompts and --tokens must be at least 1"),
    ],
    ids=["number", "list", "tokens"],
)
def test_a_wrong_call_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loop", "ceiling", DEPLOYMENT, *words]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_what_lies_below_its_floor_is_said_beside_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    slow = msgspec.structs.replace(MACHINE, bytes_per_s=4e8)
    commands._warn(ceiling(run_of(STOCK, *FREE), "stock", slow, MODEL))
    assert "below its floor: weights" in capsys.readouterr().err
    commands._warn(ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL))
    assert capsys.readouterr().err == ""
