"""Programs that try to get out, to outlive their limit, and to take more than they were given."""

from __future__ import annotations

import ast
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent_loop.sandbox import room as rooms
from agent_loop.sandbox.probe import Finding, inhabitants, probe_one
from agent_loop.sandbox.profile import Limits, Profile, interpreter_paths
from agent_loop.sandbox.room import MECHANISMS, Mechanism, open_room, require, why_not
from harness.errors import UsageError

PYTHON = [sys.executable, "-I", "-S", "-c"]
ATTEMPTS = {"loopback", "unix_socket", "abstract_socket", "file", "other_environments", "own_environment"}


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    found: Mechanism = request.param
    why = why_not(found)
    if why is not None:
        pytest.skip(f"{found} does not work here: {why}")
    return found


def profile(folder: Path | None = None, **limits: float | None) -> Profile:
    one = Profile(readable=interpreter_paths(), limits=Limits(seconds=20.0))
    limited = msgspec.structs.replace(one.limits, **limits)
    writable = () if folder is None else (str(folder),)
    return msgspec.structs.replace(one, limits=limited, writable=writable)


@pytest.fixture(scope="module")
def findings() -> dict[Mechanism, Finding]:
    return {one: probe_one(one) for one in MECHANISMS}


def test_an_intruder_reaches_nothing_that_it_reaches_outside(
    mechanism: Mechanism, findings: dict[Mechanism, Finding]
) -> None:
    found = findings[mechanism]
    assert found.why_not is None
    assert set(found.controls) >= ATTEMPTS | {"descriptors", "signal"}, "an attempt fails outside too"
    assert found.escaped == {}
    assert found.outlived is False
    assert found.closed


def test_the_environment_is_the_profile_s_and_no_more(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-of-the-key")
    with open_room(msgspec.structs.replace(profile(), environment={"MODEL": "m"}), mechanism) as room:
        done = room.run([*PYTHON, "import os; print(sorted(os.environ))"])
    names = set(ast.literal_eval(done.stdout.decode()))
    assert names - {"LC_CTYPE", "PWD", "TMPDIR"} == {"MODEL"}


def test_a_program_may_write_where_it_is_told_and_read_what_it_is_shown(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "a").write_text("seen")
    work = tmp_path / "work"
    work.mkdir()
    one = profile(work)
    one = msgspec.structs.replace(one, readable=(*one.readable, str(shown)))
    copy = f"open('{work}/b', 'w').write(open('{shown}/a').read())"
    spoil = f"open('{shown}/a', 'w').write('spoilt')"
    with open_room(one, mechanism) as room:
        assert room.run([*PYTHON, copy]).exit_code == 0
        assert room.run([*PYTHON, spoil]).exit_code != 0
        room.run([*PYTHON, f"open('{tmp_path}/c', 'w')"])  # at best into a /tmp of its own
    assert (work / "b").read_text() == "seen"
    assert (shown / "a").read_text() == "seen"
    assert not (tmp_path / "c").exists()


def test_a_symlink_leads_nowhere(mechanism: Mechanism, tmp_path: Path) -> None:
    (tmp_path / "oracle").write_text("answers")
    work = tmp_path / "work"
    work.mkdir()
    (work / "link").symlink_to(tmp_path / "oracle")
    with open_room(profile(work), mechanism) as room:
        done = room.run([*PYTHON, f"print(open('{work}/link').read())"])
    assert done.exit_code != 0
    assert b"answers" not in done.stdout


def test_the_wall_clock_ends_the_whole_tree(mechanism: Mechanism, tmp_path: Path) -> None:
    tree = "import os, time\nfor _ in range(3):\n    os.fork() or os.setsid()\ntime.sleep(60)"
    one = msgspec.structs.replace(profile(tmp_path, seconds=1.0), cwd=str(tmp_path))
    with open_room(one, mechanism) as room:
        done = room.run([*PYTHON, tree])
    assert done.timed_out
    assert done.seconds < 10
    time.sleep(0.1)
    assert inhabitants(tmp_path) == []


def test_a_daemon_left_behind_ends_with_the_program(mechanism: Mechanism, tmp_path: Path) -> None:
    one = msgspec.structs.replace(profile(tmp_path), cwd=str(tmp_path))
    leave = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nelse:\n    time.sleep(0.2)"
    )
    with open_room(one, mechanism) as room:
        done = room.run([*PYTHON, leave])
        assert not done.timed_out
        time.sleep(0.1)
        assert inhabitants(tmp_path) == []


def test_closing_the_room_ends_what_was_started_in_it(mechanism: Mechanism, tmp_path: Path) -> None:
    one = msgspec.structs.replace(profile(tmp_path), cwd=str(tmp_path))
    with open_room(one, mechanism) as room:
        room.start([*PYTHON, "import time; time.sleep(60)"])
        end = time.monotonic() + 10
        while not inhabitants(tmp_path) and time.monotonic() < end:
            time.sleep(0.02)
        assert inhabitants(tmp_path)
    assert inhabitants(tmp_path) == []


def test_a_fork_bomb_and_a_hog_are_stopped_where_a_cgroup_holds_them(mechanism: Mechanism) -> None:
    fork = (
        "import os, time\nmade = 0\ntry:\n    while made < 200:\n        made += 1\n"
        "        os.fork() or time.sleep(5)\nexcept OSError:\n    print(made)"
    )
    with open_room(profile(processes=24, memory_bytes=256 << 20), mechanism) as room:
        if not {"memory", "pids"} <= room.held:
            pytest.skip("no cgroup can be made here")
        bomb = room.run([*PYTHON, fork])
        hog = room.run([*PYTHON, "x = bytearray(1 << 30); print(len(x))"])
    assert 0 < int(bomb.stdout.split()[0]) <= 24
    assert hog.stdout == b""
    assert hog.exit_code != 0


def test_a_flood_of_output_is_cut_and_does_not_block(mechanism: Mechanism) -> None:
    with open_room(profile(output_bytes=1000), mechanism) as room:
        done = room.run([*PYTHON, "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('y' * 9)"])
    assert done.exit_code == 0
    assert len(done.stdout) == 1000
    assert done.stderr.endswith(b"y" * 9)


def test_without_a_mechanism_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "why_not", lambda one: f"no {one} here")
    with pytest.raises(UsageError, match=r"no candidate's code is run; install bubblewrap"):
        require()


def test_the_strongest_mechanism_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "why_not", lambda one: None)
    assert require() == "bubblewrap"
    monkeypatch.setattr(rooms, "why_not", lambda one: "gone" if one == "bubblewrap" else None)
    assert require() == "landlock"


@pytest.mark.gpu
def test_cuda_multiplies_inside() -> None:
    nodes = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not nodes:
        pytest.skip("no /dev/nvidia<N> here")
    if why_not("bubblewrap") is not None:
        pytest.skip("bubblewrap does not work here")
    found = probe_one("bubblewrap", (int(nodes[0].name.removeprefix("nvidia")),))
    assert found.gpu is not None
    assert found.gpu.endswith("1 seen, right: True"), found.gpu
    assert found.escaped == {}
