"""The real Claude Code between the SDK and a scripted API: in its room, through the gateway, to the desk."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_loop.explorers.claude_code_room import launcher
from agent_loop.gateway.patience import Patience
from agent_loop.gateway.settings import Settings
from agent_loop.gateway.starting import Door, guests, running
from agent_loop.protocols import BudgetSpent
from agent_loop.records import Budget
from agent_loop.sandbox.room import why_not
from harness.errors import InvalidRun, UsageError
from tests.agent_loop.explorers.desk import MemoryDesk
from tests.agent_loop.fake_messages import KEY, FakeMessages, Play, fault, serving, text, tools

pytestmark = pytest.mark.skipif(why_not("bubblewrap") is not None, reason="no bubblewrap on this machine")
CODE = "def open_session(deployment, arms):\n    raise NotImplementedError\n"
ARM = {"name": "n", "backend": "mine:open_session", "params": {"k": 3}, "mechanism": "shorter drafts"}
TRIAL, SUBMIT = "mcp__desk__run_public_trial", "mcp__desk__submit"
PATIENCE = Patience(attempts=2, longest_wait_s=0.1, all_waits_s=0.2, first_wait_s=0.01, idle_s=20.0)
Script = list[Play | list[Play]]


@contextmanager
def world(folder: Path, script: Script) -> Iterator[tuple[Door, FakeMessages]]:
    (folder / "door").mkdir()
    with serving(script) as fake:
        settings = Settings(
            campaign="c",
            folder=str(folder / "gateway"),
            explorers=guests({"e": Budget()}),
            key=KEY,
            upstream=fake.url,
            patience=PATIENCE,
            socket=str(folder / "door" / "socket"),
        )
        with running(settings) as doors:
            yield doors["e"], fake


def explore(
    folder: Path, script: Script, budget: Budget | None = None, **options: Any
) -> tuple[MemoryDesk, FakeMessages, list[str]]:
    pytest.importorskip("claude_agent_sdk")
    from agent_loop.explorers.claude_code import ClaudeCodeExplorer  # noqa: PLC0415 - after the skip

    desk, ended = MemoryDesk(folder / "tree", options.pop("trials", 9)), list[str]()
    with world(folder, script) as (door, fake):
        explorer = ClaudeCodeExplorer("e", door, tell=ended.append, **options)
        explorer.explore(desk, budget or Budget(), seed=7)
    assert fake.problems == []
    return desk, fake, ended


def write(folder: Path, name: str = "mine.py") -> tuple[str, dict[str, Any]]:
    return "Write", {"file_path": str(folder / "tree" / name), "content": CODE}


def results(fake: FakeMessages, turn: int) -> list[dict[str, Any]]:
    """What its tools answered to a turn, as the API was told."""
    told = [message for message in fake.requests[turn + 1]["messages"] if message["role"] == "user"]
    return [block for block in told[-1]["content"] if block["type"] == "tool_result"]


def test_from_a_file_to_a_submitted_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")  # what surrounds it must not lead it
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "canary-of-the-environment")
    script: Script = [
        tools(write(tmp_path)),
        tools((TRIAL, ARM)),
        tools(("Bash", {"command": "id"}), ("WebFetch", {"url": "http://x"}), (SUBMIT, ARM)),
        text("done"),
    ]
    desk, fake, ended = explore(tmp_path, script)
    (candidate,) = desk.submitted
    assert desk.tried == [[candidate]]
    assert (candidate.params, candidate.origin, candidate.explorer) == ({"k": 3}, "model", "e")
    assert candidate.patch is not None
    assert "+    raise NotImplementedError" in candidate.patch
    assert ended == ["end_turn"]
    offered = {one["name"] for one in fake.requests[-1]["tools"]}
    assert offered - {"DeferredToolPlaceholder"} == {
        *("Read", "Edit", "Write", "Glob", "Grep"),
        *(TRIAL, "mcp__desk__query_memory", SUBMIT),
    }
    shell, web, submitted = results(fake, 2)
    assert shell["is_error"]
    assert web["is_error"]
    assert '"waits"' in json.dumps(submitted["content"]).replace("\\", "")
    assert "canary-of-the-environment" not in json.dumps([fake.requests, fake.headers])
    assert (tmp_path / "gateway/transcripts/c/e/seed-7.jsonl").read_text().count("\n") == len(fake.requests)


def test_a_file_outside_of_its_worktree_is_not_written(tmp_path: Path) -> None:
    script: Script = [
        tools(("Write", {"file_path": str(tmp_path / "outside.py"), "content": CODE})),
        text("done"),
    ]
    _, _, ended = explore(tmp_path, script)  # inside, a write may seem to succeed: /tmp there is its own
    assert not (tmp_path / "outside.py").exists()
    assert ended == ["end_turn"]


def test_a_budget_of_the_gateway_ends_it(tmp_path: Path) -> None:
    with pytest.raises(BudgetSpent, match="turns"):
        explore(tmp_path, [tools(write(tmp_path)), tools((TRIAL, ARM)), text("done")], Budget(turns=1))


def test_budgets_of_the_desk_end_it(tmp_path: Path) -> None:
    script: Script = [tools(write(tmp_path)), tools((TRIAL, ARM)), tools((SUBMIT, ARM)), text("done")]
    desk, _, ended = explore(tmp_path, script, trials=0)
    assert desk.tried == []
    assert len(desk.submitted) == 1
    assert ended == ["end_turn"]


def test_a_model_without_a_price_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="has no price"):
        explore(tmp_path, [text("hi")], model="claude-unheard-of")


def test_what_fails_for_good_ends_it_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidRun, match="Claude Code: "):
        explore(tmp_path, [fault(400, "invalid_request_error")])


LOOKING = """#!/usr/bin/python3 -S
import json, os, socket, sys, urllib.parse

found = {"environ": sorted(os.environ), "arguments": sys.argv[1:], "reached": []}
place = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
for name, address in (
    ("host", ("127.0.0.1", PORT)), ("far", ("1.1.1.1", 53)), ("gateway", (place.hostname, place.port))
):
    try:
        with socket.create_connection(address, 2) as one:
            if name == "gateway":
                token = os.environ["ANTHROPIC_API_KEY"]
                one.sendall(f"GET /spent HTTP/1.0\\r\\nx-api-key: {token}\\r\\n\\r\\n".encode())
                found["status"] = one.recv(100).decode().split()[1]
            found["reached"].append(name)
    except OSError:
        pass
for name in ("tree", "gateway", "."):
    try:
        open(f"ROOT/{name}/of-the-test", "w").close()
    except OSError:
        pass
print(json.dumps(found))
"""


def test_the_room_leads_to_the_gateway_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program in the place of Claude Code; needs no SDK."""
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    program, tree = tmp_path / "looking", tmp_path / "tree"
    tree.mkdir()
    with world(tmp_path, [text("hi")]) as (door, fake):
        port = fake.url.rpartition(":")[2]
        program.write_text(LOOKING.replace("PORT", port).replace("ROOT", str(tmp_path)))
        program.chmod(0o755)
        with launcher(program, tree, door, "claude-opus-5-5") as script:
            assert door.token not in script.read_text()
            done = subprocess.run([script, "--a", "b c"], capture_output=True, text=True, check=True)
        with (
            pytest.raises(UsageError, match="needs a gateway with a socket"),
            launcher(program, tree, Door(door.url, door.token), "m"),
        ):
            pass
    seen = json.loads(done.stdout)
    assert seen["reached"] == ["gateway"]
    assert [path.parent for path in tmp_path.rglob("of-the-test")] == [tree]
    assert seen["status"] == "200"
    assert seen["arguments"] == ["--a", "b c"]
    assert "SECRET_OF_OURS" not in seen["environ"]
    assert KEY not in done.stdout
