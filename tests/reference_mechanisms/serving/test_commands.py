"""What the command line of `serve` says, and a run of it from the shell to the last answer."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli_serving import open_wanted
from harness.errors import EXIT_OK, EXIT_USAGE, UsageError
from reference_mechanisms.serving.commands import Wanted, mechanism
from reference_mechanisms.serving.errors import ChoiceError


@pytest.fixture
def file(deployment_file: Path) -> Path:
    return deployment_file


def test_a_mechanism_is_a_name_and_fields() -> None:
    assert mechanism(["ar"]) == {"drafter": "none"}
    assert mechanism(["dflash", "k=4", "graphs=false", "checkpoint=/a/b", "min_confidence=0.5"]) == {
        "drafter": "dflash",
        "drafts": 4,
        "graphs": False,
        "checkpoint": "/a/b",
        "min_confidence": 0.5,
    }


@pytest.mark.parametrize("words", [["ngram", "4"], ["ngram", "=4"], ["ngram", "k=4", "drafts=4"]])
def test_words_that_are_no_fields_are_named(words: list[str]) -> None:
    with pytest.raises(ChoiceError, match="--mechanism"):
        mechanism(words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queue", "0"), "--queue"),
        (("--lanes", "0"), "--lanes"),
        (("--lanes", "2", "--mechanism", "ngram", "k=4", "two_level=stage", "stage_first=2"), "--lanes"),
        (("--lanes", "2", "--mechanism", "ngram", "k=4", "batch_slots=4"), "`batch_slots`"),
        (("--mechanism", "ngram", "k=4", "batch_budget=true"), "`batch_budget` needs measured costs"),
        (("--port", "70000"), "--port"),
        (("--arm", "nobody"), "nobody"),
        (("--mechanism", "telepathy"), "`drafter` must be one of"),
        (("--mechanism", "replay", "k=3"), "recorded"),
        (("--mechanism", "ngram", "k=99"), "`drafts`"),
    ],
)
def test_wrong_options_are_named(
    file: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(file), "--port", "0", *arguments]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_a_taken_port_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(file), "--port", port]) == EXIT_USAGE
    assert f"--port {port}" in capsys.readouterr().err


def test_an_arm_of_a_plan_is_found(file: Path) -> None:
    opened = open_wanted(Wanted(str(file), "ngram", "reproduce-cpu", None, "mine"))
    assert opened.about.served.name == "mine"
    assert opened.about.settings["settings"]["speculative_config.method"] == "ngram"


def test_servers_elsewhere_are_not_served_here() -> None:
    with pytest.raises(UsageError, match="remote"):
        open_wanted(Wanted("smollm2-135m-servers-f32", None, "reproduce-cpu", {"drafter": "none"}, None))


def test_the_command_serves_until_it_is_interrupted(file: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "serve", str(file), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
        assert address is not None
        end = None
        while end is None:
            try:
                with urllib.request.urlopen(f"{address[0]}/health", timeout=10) as answer:  # noqa: S310
                    end = answer.status
            except OSError:
                assert process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == EXIT_OK
        assert process.stdout.read() == "stopped\n"
        assert "Traceback" not in process.stderr.read()
    assert end == 200
