from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_loop.guest.arms import BACKEND, arm_of
from agent_loop.guest.backend import STEP_SECONDS, GuestSession, open_session
from agent_loop.records import Candidate, Hypothesis
from agent_loop.sandbox.room import MECHANISMS, why_not
from harness.errors import BackendError, UsageError
from harness.measure.launch import warm_up
from harness.measure.stopwatch import Place, run_batch
from harness.measure.worker import SystemClock
from harness.plan import ArmSpec
from harness.records import DecodeRequest, Sampling, StepEvent
from tests.agent_loop import guests
from tests.agent_loop.simulated import make_loop
from tests.sealed_evals.campaign import engine

pytestmark = pytest.mark.skipif(
    all(why_not(one) is not None for one in MECHANISMS), reason="no sandbox works on this machine"
)
REQUEST = DecodeRequest(request_id="p", prompt_token_ids=(1, 2), sampling=Sampling(max_tokens=9))
PLACE = Place(arm="c0", launch=0, block=0, order=0)


def guest(
    root: Path, text: str, *, step_seconds: float = STEP_SECONDS, **params: Any
) -> tuple[GuestSession, ArmSpec]:
    candidate = Candidate(
        name="x",
        backend="faster:open_session",
        params=params,
        patch=guests.patch(text),
        hypothesis=Hypothesis(mechanism="x"),
        origin="model",
        explorer="e",
    )
    arm = arm_of(root / "worktrees")(candidate, "c0")
    assert arm.backend == BACKEND
    return GuestSession(make_loop().job.deployment, [arm], step_seconds=step_seconds), arm


def test_an_honest_guest_is_timed_from_outside_and_its_tokens_come_through(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.HONEST, width=4)
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    assert found.status == "ok"
    assert len(found.token_ids) == 9
    assert found.end_ns is not None
    assert found.end_ns / 1e9 >= 2 * engine.STEP_SECONDS


def test_a_guest_that_stops_its_clock_takes_as_long_as_its_honest_twin(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.PATCHED_CLOCK, width=4)
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    assert found.end_ns is not None
    assert found.end_ns / 1e9 >= 2 * engine.STEP_SECONDS


def test_a_guest_sees_neither_our_environment_nor_our_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("SPECPILOT_CONTROLLER_DIR", str(tmp_path))
    secret = os.open(tmp_path / "open", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    session, _ = guest(tmp_path, guests.ENVIRONMENT)
    session.prepare("c0", [REQUEST])
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    os.close(secret)
    assert found.error is not None
    seen = json.loads(found.error[found.error.index("{") :])
    assert not {"ANTHROPIC_API_KEY", "SPECPILOT_CONTROLLER_DIR"} & set(seen["environ"])
    assert seen["files"] == []
    assert seen["prepared"] is False  # nobody tells it what will be timed
    assert seen["told"] == [""]  # nor which row it is
    assert seen["writable"] is False  # nor can it keep an answer for the next launch


def test_a_forged_answer_is_a_failure_of_the_guest(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.FORGING)
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    assert found.status == "failed"


def test_a_guest_that_does_not_open_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"arms\[c0\].params: the guest ended"):
        guest(tmp_path, guests.DYING)
    with pytest.raises(UsageError, match=r"arms\[c0\].params: the candidate does not open: .*nowhere"):
        guest(tmp_path, "import nowhere\n")
    with pytest.raises(UsageError, match="a guest needs `worktree`"):
        open_session(make_loop().job.deployment, [ArmSpec(name="c0", kind="candidate", backend=BACKEND)])


def test_a_closed_guest_answers_no_more(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.HONEST)
    session.close()
    with pytest.raises((BackendError, ValueError)):
        list(session.stream("c0", [REQUEST]))


def test_a_guest_that_says_nothing_is_ended_and_asked_no_more(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.SILENT, step_seconds=0.5)
    first, second = (run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())[0] for _ in range(2))
    session.close()
    assert first.error is not None
    assert "said nothing for 0.5 s" in first.error
    assert second.status == "failed"


def test_a_guest_is_stopped_with_all_it_started_while_nobody_asks_it(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.COUNTING)
    for _ in range(2):
        (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
        assert found.error is not None
        ticks, own = json.loads(found.error[found.error.index("[") :])
        time.sleep(0.5)
    session.close()
    assert own > 3  # it does count while it is asked
    assert ticks < 10  # half a second of a hundred ticks a second was not counted


def test_code_that_is_not_ours_is_warmed_with_other_prompts() -> None:
    session = GuestSession.__new__(GuestSession)
    plan = make_loop().job.plan
    job = msgspec.structs.replace(make_loop().job, plan=plan)
    met: list[tuple[int, ...]] = []

    def stream(arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        met.extend(request.prompt_token_ids for request in requests)
        return iter(())

    session.stream = stream  # type: ignore[method-assign]
    warm_up(job, {arm.name: session for arm in plan.arms}, [REQUEST], SystemClock())
    assert met == [REQUEST.prompt_token_ids[::-1]]
