from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agent_loop.guest.arms import BACKEND, arm_of
from agent_loop.guest.backend import GuestSession, open_session
from agent_loop.records import Candidate, Hypothesis
from harness.errors import BackendError, UsageError
from harness.measure.stopwatch import Place, run_batch
from harness.measure.worker import SystemClock
from harness.plan import ArmSpec
from harness.records import DecodeRequest, Sampling
from tests.agent_loop import guests
from tests.agent_loop.simulated import make_loop
from tests.sealed_evals.campaign.engine import STEP_SECONDS

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
    session, arm = guest(tmp_path, guests.ENVIRONMENT)
    session.prepare("c0", [REQUEST])
    run_batch(session, [REQUEST], ["p"], PLACE, SystemClock())
    session.close()
    os.close(secret)
    tree = Path(str(arm.params["worktree"]))
    seen = json.loads((tree / "seen.json").read_text())
    assert not {"ANTHROPIC_API_KEY", "SPECPILOT_CONTROLLER_DIR"} & set(seen["environ"])
    assert len(seen["descriptors"]) <= 5  # its three pipes, the channel, and the folder it lists
    assert not (tree / "prepared").exists()  # nobody tells it what will be timed


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


def test_a_guest_leaves_nothing_running(tmp_path: Path) -> None:
    forking = (
        "import os, subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path('child').write_text(str(child.pid))\n" + guests.HONEST
    )
    session, arm = guest(tmp_path, forking)
    child = int((Path(str(arm.params["worktree"])) / "child").read_text())
    session.close()
    with pytest.raises(BackendError):
        list(session.stream("c0", [REQUEST]))
    end = time.monotonic() + 5.0
    while _running(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def _running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
