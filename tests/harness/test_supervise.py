"""Launches in fresh processes: what is kept, what is told, what goes on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.codec import from_json
from harness.errors import InvalidRun, UsageError
from harness.measure import supervise
from harness.measure.supervise import finished_responses, run_launch
from harness.measure.worker import Message
from harness.paths import RunFolder
from harness.plan import ArmSpec, Job, Param
from harness.records import Response
from harness.storage import write_lines
from tests.harness.fakes import BACKEND, make_job, make_prompts


def prepare(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.partial.mkdir(parents=True)
    write_lines(folder.prompts, make_prompts())
    return folder


def launch(job: Job, folder: RunFolder) -> list[Response]:
    responses, facts, _ = run_launch(job, folder, 3, 0, lambda amount: None, time.time)
    assert facts[BACKEND]["engine"] == "scripted"
    return responses


def test_a_launch_returns_every_response_of_its_schedule(tmp_path: Path) -> None:
    job, folder = make_job(), prepare(tmp_path)
    advanced: list[int] = []
    responses, _, windows = run_launch(job, folder, 3, 0, advanced.append, time.time)
    assert len(responses) == 3 * 2 * 2 == sum(advanced)
    assert {(r.block, r.arm, r.prompt_id) for r in responses} == {
        (b, a, f"own/p{n}") for b in (0, 1) for a in ("ar", "stock") for n in range(3)
    }
    assert [window.block for window in windows] == [0, 1]


def test_a_killed_launch_keeps_its_finished_blocks_and_goes_on_after_them(tmp_path: Path) -> None:
    marker = tmp_path / "died"
    dying: dict[str, Param] = {"drafts": 2, "die_on": "own/p1", "die_marker": str(marker)}
    arms = (
        ArmSpec(name="ar", kind="ar", backend=BACKEND),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params=dying),
    )
    job, folder = make_job(arms, warmup_prompts=0), prepare(tmp_path)
    with pytest.raises(InvalidRun, match="launch 0 ended with code"):
        launch(job, folder)
    assert marker.exists()
    responses = launch(job, folder)
    assert len(responses) == 12
    assert len({(r.block, r.arm, r.prompt_id) for r in responses}) == 12


def test_a_torn_block_is_measured_again_and_a_whole_one_is_not(tmp_path: Path) -> None:
    job, folder = make_job(), prepare(tmp_path)
    before = launch(job, folder)
    path = folder.launch_file(0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:8]) + lines[8][:20])
    assert len(finished_responses(folder, job, 3, 0)) == 6
    after = launch(job, folder)
    assert len(after) == 12
    assert [r for r in after if r.block == 0] == [r for r in before if r.block == 0]


def test_a_launch_that_is_cut_behind_a_block_has_told_the_counters_of_that_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a report of the resumed run would read those from before the first request."""

    def cut(*_: object) -> Iterator[Message]:
        yield Message(event="ready", facts={BACKEND: {"counters": 0}})
        yield Message(event="block", block=0, facts={BACKEND: {"counters": 7}})
        raise InvalidRun("cut")

    folder = prepare(tmp_path)
    monkeypatch.setattr(supervise, "_messages", cut)
    with pytest.raises(InvalidRun, match="cut"):
        launch(make_job(), folder)
    facts = from_json((folder.partial / "launch-0.facts.json").read_bytes(), dict, "facts")
    assert facts == {BACKEND: {"counters": 7}}


def test_a_worker_tells_its_facts_with_every_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Message] = []
    messages = supervise._messages

    def heard(*given: Any) -> Iterator[Message]:
        for message in messages(*given):
            told.append(message)
            yield message

    monkeypatch.setattr(supervise, "_messages", heard)
    launch(make_job(), prepare(tmp_path))
    blocks = [message for message in told if message.event == "block"]
    assert len(blocks) == 2
    assert all(message.facts[BACKEND]["engine"] == "scripted" for message in blocks)


def test_a_failing_request_is_a_failed_response_not_a_dead_run(tmp_path: Path) -> None:
    arms = (
        ArmSpec(name="ar", kind="ar", backend=BACKEND),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafts": 2, "fail_on": "own/p2"}),
    )
    responses = launch(make_job(arms), prepare(tmp_path))
    failed = [r for r in responses if r.status == "failed"]
    assert len(failed) == 2
    assert {(r.arm, r.prompt_id) for r in failed} == {("stock", "own/p2")}


@pytest.mark.parametrize(
    "backend", ["tests.harness.fakes:nothing", "no_such_module:open", "tests.harness.fakes"], ids=str
)
def test_an_unknown_backend_is_a_usage_error_naming_the_field(tmp_path: Path, backend: str) -> None:
    arms = (ArmSpec(name="ar", kind="ar", backend=backend),)
    with pytest.raises(UsageError, match=r"arms\[ar\]\.backend"):
        run_launch(make_job(arms), prepare(tmp_path), 3, 0, lambda amount: None, time.time)
