"""Bad input through the public command line: one clear error, the right exit code, nothing lost."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_USAGE
from harness.paths import RunFolder
from tests.harness.tiny import write_llama

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
schema = "plan/1"
name = "small"
deployment = "target.toml"
label = "smoke"

[[sets]]
name = "own"
path = "@PROMPTS@"
count = 2

[sampling]
max_tokens = 8

[[arms]]
name = "ar"
kind = "ar"
backend = "reference_mechanisms.backend:open_session"
params = { drafter = "none" }

[[arms]]
name = "replay"
kind = "replay"
backend = "reference_mechanisms.backend:open_session"
params = { drafter = "replay", drafts = 3 }

[measure]
launches = 1
blocks = 2
warmup_prompts = 0
max_foreign_load = 1.0

[oracle]
calibration_set = "own"
calibration_prompts = 2
calibration_tokens = 8

[stats]
resamples = 100
"""
TARGET = """
schema = "deployment/1"
name = "tiny"
device = "cpu"
threads = 1
context_length = 96

[target]
path = "@MODEL@"
dtype = "float32"
"""
Say = Callable[[], str]
BLOCKS = 24  # more than there is time for between a look at the launch and the next
LONGEST = 240.0  # seconds until a child is given up, on a machine that has much else to do


class Desk:
    """Files of a small run, to be spoiled."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.out = root / "out"
        self.started: list[subprocess.Popen[str]] = []
        self.prompts = root / "prompts.jsonl"
        self.write_prompts("one", "two", "three", "four")
        self.plan = root / "plan.toml"
        self.plan.write_text(PLAN.replace("@PROMPTS@", str(self.prompts)))
        (root / "target.toml").write_text(TARGET.replace("@MODEL@", str(model)))

    def write_prompts(self, *texts: str) -> None:
        self.prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))

    def edit(self, old: str, new: str, name: str = "plan.toml") -> None:
        path = self.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def run(self, *more: str) -> int:
        return main(["run", str(self.plan), "--out", str(self.out), *more])

    def start(self, *more: str) -> subprocess.Popen[str]:
        def interruptible() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background has it ignored

        run = subprocess.Popen(
            [sys.executable, "-m", "harness.cli", "run", str(self.plan), "--out", str(self.out), *more],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=interruptible,  # noqa: PLW1509 - the child is single-threaded until exec
        )
        self.started.append(run)
        return run

    def end(self) -> None:
        """What a failed test left running; an interrupt lets it end its own worker."""
        for run in self.started:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
                run.communicate(timeout=LONGEST)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("cli") / "target")


@pytest.fixture
def desk(tmp_path: Path, model: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, model)
    yield desk
    desk.end()


@pytest.fixture(scope="module", autouse=True)
def quick(undrawn: None, launches_here: None) -> None:
    """No page is looked at here; processes are where an interrupt or another run meets them."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Desk:
    """A run that ended well, for tests that leave it as it is."""
    desk = Desk(tmp_path_factory.mktemp("finished"), model)
    assert desk.run() == EXIT_OK
    return desk


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Say:
    return lambda: capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(
            "max_tokens = 8", "max_token = 8", ("max_token", "did you mean `max_tokens`"), id="typo"
        ),
        pytest.param("max_tokens = 8", 'max_tokens = "8"', ("max_tokens", "int"), id="wrong type"),
        pytest.param("max_tokens = 8", "max_tokens = 0", ("max_tokens", "at least 1"), id="out of range"),
        pytest.param("resamples = 100", "resamples = 1", ("resamples", "at least"), id="too few resamples"),
        pytest.param('kind = "ar"', 'kind = "auto"', ("kind", "auto"), id="unknown kind"),
        pytest.param("[oracle]", "[oracle", ("not valid TOML",), id="no TOML"),
        pytest.param(
            "reference_mechanisms.backend:open", "nowhere:open", ("backend", "nowhere"), id="backend"
        ),
        pytest.param(
            "drafts = 3", "draft = 3", ("arms[replay].params", "`draft` is unknown"), id="parameter"
        ),
        pytest.param('"target.toml"', '"h100-tpyo"', ("h100-tpyo", "built in"), id="unknown deployment"),
        pytest.param(
            '[[sets]]\nname = "own"', '[[sets]]\nname = "gsm9k"', ("gsm9k",), id="path of another set"
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_a_usage_error_that_names_the_field(
    desk: Desk, said: Say, old: str, new: str, words: tuple[str, ...]
) -> None:
    desk.edit(old, new)
    if "gsm9k" in new:
        desk.edit(f'path = "{desk.prompts}"\n', "")
    assert desk.run() == EXIT_USAGE
    told = said()
    assert all(word in told for word in words), told
    assert "Traceback" not in told
    assert not RunFolder(desk.out).report_json.exists()


def test_a_plan_too_small_for_its_label_is_refused_before_anything_runs(desk: Desk, said: Say) -> None:
    desk.edit('label = "smoke"', 'label = "full"')
    assert desk.run() == EXIT_USAGE
    assert "`label` is full with 1 launches; a claim needs 3; `label` is full with 2 blocks" in said()
    assert not desk.out.exists()


def test_an_unknown_plan_lists_the_known_ones(said: Say) -> None:
    assert main(["run", "reproduce-cup"]) == EXIT_USAGE
    assert "reproduce-cpu" in said()


def test_an_unknown_option_ends_with_the_usage_code() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "reproduce-cpu", "--resum"])
    assert stopped.value.code == EXIT_USAGE


def test_reading_the_command_line_loads_no_torch() -> None:
    look = "import sys; from harness.cli import build_parser; build_parser(); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_an_empty_prompt_file_is_refused(desk: Desk, said: Say) -> None:
    desk.prompts.write_text("")
    assert desk.run() == EXIT_INVALID
    assert str(desk.prompts) in said()


def test_a_draw_larger_than_the_set_is_refused(desk: Desk, said: Say) -> None:
    desk.edit("count = 2", "count = 5")
    assert desk.run() in (EXIT_INVALID, EXIT_USAGE)
    told = said()
    assert "own" in told
    assert "4" in told


def test_a_changed_byte_in_a_pinned_file_names_both_hashes(desk: Desk, said: Say, tmp_path: Path) -> None:
    given = os.environ.get("SPECPILOT_EVALS_DIR")
    if given is None:
        pytest.skip("SPECPILOT_EVALS_DIR names no folder of original files")
    original = next(path for path in Path(given).rglob("*") if "mbpp" in path.name.lower() and path.is_file())
    folder = tmp_path / "evals"
    spoiled = folder / original.relative_to(given)
    spoiled.parent.mkdir(parents=True)
    shutil.copyfile(original, spoiled)
    data = bytearray(spoiled.read_bytes())
    data[len(data) // 2] ^= 1
    spoiled.write_bytes(data)
    desk.edit(f'name = "own"\npath = "{desk.prompts}"', 'name = "mbpp"')
    assert desk.run("--evals-dir", str(folder)) == EXIT_INVALID
    told = said()
    assert len({word.strip(",.;:()") for word in told.split() if len(word.strip(",.;:()")) == 64}) >= 2, told


def test_a_prompt_longer_than_the_context_is_refused_by_name(desk: Desk, said: Say) -> None:
    desk.write_prompts(*["long " * 40] * 1, "b " * 60, "c " * 60, "d " * 60)
    assert desk.run() == EXIT_INVALID
    told = said()
    assert "context_length" in told
    assert "own/" in told


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_target_folder_that_lacks_a_file_is_refused_by_name(
    desk: Desk, said: Say, tmp_path: Path, missing: str
) -> None:
    spoiled = tmp_path / "spoiled"
    shutil.copytree(desk.model, spoiled)
    (spoiled / missing).unlink()
    desk.edit(str(desk.model), str(spoiled), "target.toml")
    assert desk.run() == EXIT_INVALID
    told = said()
    assert str(spoiled) in told
    assert "Traceback" not in told


@pytest.mark.parametrize("where", ["/proc/nothing", "/dev/null/out"])
def test_an_output_folder_that_cannot_be_made_is_refused(desk: Desk, said: Say, where: str) -> None:
    assert main(["run", str(desk.plan), "--out", where]) == EXIT_INVALID
    assert where in said()


def test_a_full_disk_ends_the_run_with_the_file_that_could_not_be_written(desk: Desk, said: Say) -> None:
    with files_of_at_most(2000):  # the launch's responses are more
        assert desk.run() == EXIT_INVALID
    told = said()
    assert f"cannot append to {desk.out}" in told
    assert "Traceback" not in told


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """For this process and those it starts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_finished_run_is_not_overwritten_unasked(finished: Desk, said: Say) -> None:
    before = RunFolder(finished.out).report_json.read_bytes()
    assert finished.run() == EXIT_USAGE
    assert "--overwrite" in said()
    assert RunFolder(finished.out).report_json.read_bytes() == before


def test_resuming_another_plan_is_refused(finished: Desk, said: Say) -> None:
    other = finished.root / "other.toml"
    other.write_text(finished.plan.read_text().replace("max_tokens = 8", "max_tokens = 9"))
    assert main(["run", str(other), "--out", str(finished.out), "--resume"]) == EXIT_USAGE
    assert "another plan" in said()


def test_an_interrupted_run_is_resumed_where_it_stopped(desk: Desk) -> None:
    desk.edit("blocks = 2", f"blocks = {BLOCKS}")
    first = desk.start()
    launch = RunFolder(desk.out).launch_file(0)
    wait_for(lambda: launch.exists() and launch.read_bytes().count(b"\n") >= 8)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=LONGEST)
    assert first.returncode == EXIT_INVALID, told
    assert "--resume" in told
    assert "Traceback" not in told
    kept = launch.read_text().splitlines()
    assert len(kept) < BLOCKS * 4
    assert not RunFolder(desk.out).report_json.exists()
    assert desk.run("--resume") == EXIT_OK
    responses = RunFolder(desk.out).responses.read_text().splitlines()
    assert len(responses) == BLOCKS * 4
    whole_blocks = [line for line in kept if line.endswith("}")]
    assert set(whole_blocks[: len(whole_blocks) // 4 * 4]) <= set(responses)
    warnings = json.loads(RunFolder(desk.out).report_json.read_bytes())["warnings"]
    assert any("before the run was resumed" in warning for warning in warnings)


def test_two_runs_in_one_folder_do_not_meet(desk: Desk, said: Say) -> None:
    desk.edit("blocks = 2", "blocks = 40")
    first = desk.start()
    wait_for(RunFolder(desk.out).job.exists)
    assert desk.run("--overwrite") == EXIT_INVALID
    assert "another run" in said()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=LONGEST)


def wait_for(happened: Callable[[], bool], seconds: float = LONGEST) -> None:
    for _ in polls(seconds):
        if happened():
            return
    raise AssertionError("did not happen in time")


def polls(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
