from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_loop.guest.arms import BACKEND, arm_of
from agent_loop.guest.backend import GuestSession, open_session
from agent_loop.records import Candidate, Hypothesis
from agent_loop.sandbox.room import MECHANISMS, why_not
from harness.errors import BackendError, UsageError
from harness.measure.stopwatch import Place, run_batch
from harness.measure.worker import SystemClock
from harness.plan import ArmSpec
from harness.records import DecodeRequest, Sampling
from tests.agent_loop import guests
from tests.agent_loop.simulated import make_loop
from tests.sealed_evals.campaign.engine import STEP_SECONDS

pytestmark = pytest.mark.skipif(
    all(why_not(one) is not None for one in MECHANISMS), reason="no sandbox works on this machine"
)
REQUEST = DecodeRequest(request_id="p", prompt_token_ids=(1, 2), sampling=Sampling(max_tokens=9))
PLACE = Place(arm="c0", launch=0, block=0, order=0)


def guest(root: Path, text: str, **params: Any) -> tuple[GuestSession, ArmSpec]:
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
    return open_session(make_loop().job.deployment, [arm]), arm


def test_an_honest_guest_is_timed_from_outside_and_its_tokens_come_through(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.HONEST, width=4)
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    assert found.status == "ok"
    assert len(found.token_ids) == 9
    assert found.end_ns is not None
    assert found.end_ns / 1e9 >= 2 * STEP_SECONDS


def test_a_guest_that_stops_its_clock_takes_as_long_as_its_honest_twin(tmp_path: Path) -> None:
    session, _ = guest(tmp_path, guests.PATCHED_CLOCK, width=4)
    (found,) = run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    assert found.end_ns is not None
    assert found.end_ns / 1e9 >= 2 * STEP_SECONDS


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
