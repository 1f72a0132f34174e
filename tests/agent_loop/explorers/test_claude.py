"""The whole way without a key: explorer, gateway, scripted API, tools, a submitted candidate."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_loop.controller.policy import check, patch_files
from agent_loop.explorers.workbench import Workbench
from agent_loop.gateway.patience import Patience
from agent_loop.gateway.settings import Settings
from agent_loop.gateway.starting import Door, guests, running
from agent_loop.protocols import BudgetSpent
from agent_loop.records import Budget
from harness.errors import InvalidRun, UsageError
from tests.agent_loop.explorers.desk import MemoryDesk
from tests.agent_loop.fake_messages import KEY, FakeMessages, Play, fault, serving, text, tools

pytest.importorskip("anthropic")

from agent_loop.explorers.claude import DROPPED, ClaudeExplorer

CODE = "def open_session(deployment, arms):\n    raise NotImplementedError\n"
ARM = {"name": "n", "backend": "mine:open_session", "params": {"k": 3}, "mechanism": "shorter drafts"}
WRITE = tools(("edit", {"path": "mine.py", "old": "", "new": CODE}))
PATIENCE = Patience(attempts=3, longest_wait_s=0.5, all_waits_s=1.0, first_wait_s=0.01, idle_s=5.0)


Script = Sequence[Play | list[Play]]


class Explored:
    def __init__(self, desk: MemoryDesk, fake: FakeMessages, ended: list[str]) -> None:
        self.desk, self.fake, self.ended = desk, fake, ended

    def results(self, turn: int) -> list[dict[str, Any]]:
        """What the tools of a turn answered, as the API was told."""
        last = self.fake.requests[turn + 1]["messages"][-1]["content"]
        return [block for block in last if block["type"] == "tool_result"]


EXPLORERS = [f"e{number}" for number in range(40)]


@contextlib.contextmanager
def world(folder: Path) -> Iterator[tuple[FakeMessages, Iterator[Door]]]:
    """An API and a gateway before it, with doors for many explorers."""
    with serving([text("")]) as fake:
        settings = Settings(
            campaign="c",
            folder=str(folder),
            explorers=guests(dict.fromkeys(EXPLORERS, Budget())),
            key=KEY,
            upstream=fake.url,
            patience=PATIENCE,
        )
        with running(settings) as doors:
            yield fake, iter([doors[name] for name in EXPLORERS])


def search(
    fake: FakeMessages,
    door: Door,
    worktree: Path,
    script: Script,
    budget: Budget | None = None,
    **options: Any,
) -> Explored:
    fake.begin(script)
    desk, ended = MemoryDesk(worktree, options.pop("trials", 9)), list[str]()
    explorer = ClaudeExplorer("e", door, tell=ended.append, **options)
    explorer.explore(desk, budget or Budget(), seed=7)
    assert fake.problems == []
    return Explored(desk, fake, ended)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeMessages, Iterator[Door]]]:
    with world(tmp_path_factory.mktemp("gateway")) as found:
        yield found


@pytest.fixture
def explore(shared: tuple[FakeMessages, Iterator[Door]], tmp_path: Path) -> Any:
    fake, doors = shared

    def run(script: Script, budget: Budget | None = None, **options: Any) -> Explored:
        return search(fake, next(doors), tmp_path / "worktree", script, budget, **options)

    return run


def test_from_an_edit_to_a_submitted_candidate(explore: Any) -> None:
    found = explore([WRITE, tools(("run_public_trial", ARM)), tools(("submit", ARM)), text("done")])
    (candidate,) = found.desk.submitted
    assert found.desk.tried == [[candidate]]
    assert patch_files(candidate.patch) == {"mine.py": CODE}
    assert check(candidate, ()) is None
    assert (candidate.params, candidate.origin, candidate.explorer) == ({"k": 3}, "model", "e")
    assert found.ended == ["end_turn"]
    request = found.fake.requests[-1]
    assert request["model"] == "claude-opus-5-5"
    assert request["system"][-1]["cache_control"] == {"type": "ephemeral"}
    assert request["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert {key for message in request["messages"] for block in message["content"] for key in block} <= {
        *("type", "text", "id", "name", "input", "tool_use_id", "content", "is_error", "cache_control")
    }


def test_trials_of_one_turn_share_a_measurement_and_every_call_is_answered(explore: Any) -> None:
    other = ARM | {"params": {"k": 5}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("run_public_trial", ARM),
        ("read", {"path": "mine.py"}),
        ("run_public_trial", other),
    ]
    found = explore([WRITE, tools(*calls), text("done")])
    assert [len(group) for group in found.desk.tried] == [2]
    assert [
        json.loads(r["content"])["outcome"] if i != 1 else r["content"]
        for i, r in enumerate(found.results(1))
    ] == [
        "PASSED",
        CODE,
        "PASSED",
    ]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("read", {"path": "../secret"}, "relative path inside"),
        ("read", {"path": "/etc/passwd"}, "relative path inside"),
        ("edit", {"path": "conftest.py", "old": "", "new": "x"}, "may not be written"),
        ("edit", {"path": "harness/x.py", "old": "", "new": "x"}, "package of the house"),
        ("edit", {"path": ".git/config", "old": "", "new": "x"}, "hidden"),
        ("bash", {"command": "env"}, "there is no tool"),
        ("read", {"file": "x"}, "lacks"),
        ("submit", {"backend": "a:b"}, "lacks"),
        ("submit", {**ARM, "params": {"k": [1]}}, "params"),
    ],
)
def test_a_call_that_cannot_be_answered_is_an_error_for_the_model(
    explore: Any, name: str, given: dict[str, Any], said: str
) -> None:
    found = explore([tools((name, given)), text("done")])
    (result,) = found.results(0)
    assert result["is_error"]
    assert said in result["content"]
    assert found.desk.submitted == []


@pytest.mark.parametrize(
    "first",
    [
        fault(429, "rate_limit_error", retry_after="0.01"),
        fault(529, "overloaded_error"),
        text("x", cut="middle"),
        text("x", error="overloaded_error"),
        text("x", bad_json=True),
    ],
    ids=["429", "529", "cut", "error event", "bad JSON"],
)
def test_a_turn_that_fails_is_asked_again(explore: Any, first: Play) -> None:
    found = explore([[first, tools(("submit", ARM | {"backend": "a:b"}))], text("done")])
    assert len(found.desk.submitted) == 1
    assert found.ended == ["end_turn"]


def test_what_fails_for_good_ends_the_search_with_a_reason(explore: Any) -> None:
    with pytest.raises(InvalidRun, match="3 answers in a row broke off"):
        explore([text("x", cut="middle")])


@pytest.mark.parametrize("stop", ["refusal", "stop_sequence"])
def test_a_refusal_is_an_ordinary_end(explore: Any, stop: str) -> None:
    assert explore([text("no", stop=stop)]).ended == [stop]


def test_a_call_that_was_cut_off_is_not_made(explore: Any) -> None:
    submit = ("submit", ARM | {"backend": "a:b"})
    found = explore([tools(submit, submit, stop="max_tokens"), text("done")])
    assert len(found.desk.submitted) == 1
    assert [result["is_error"] for result in found.results(0)] == [False, True]


def test_a_model_without_a_price_is_refused(explore: Any) -> None:
    with pytest.raises(InvalidRun, match="has no price"):
        explore([text("hi")], model="claude-unheard-of")


def test_a_budget_ends_the_loop_and_what_was_submitted_stands(explore: Any) -> None:
    with pytest.raises(BudgetSpent, match="turns"):
        explore([tools(("search", {"text": "x"}))], Budget(turns=3))


def test_trials_at_their_end_are_told_and_a_submission_is_still_possible(explore: Any) -> None:
    arm = ARM | {"backend": "a:b"}
    found = explore([tools(("run_public_trial", arm)), tools(("submit", arm)), text("done")], trials=0)
    assert "budget of `trials` is spent" in found.results(0)[0]["content"]
    assert len(found.desk.submitted) == 1


def test_old_answers_are_dropped_when_the_context_grows(explore: Any) -> None:
    found = explore([tools(("search", {"text": "x"}))] * 7 + [text("done")], context_tokens=50)
    contents = [
        block["content"]
        for message in found.fake.requests[-1]["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert contents[0] == DROPPED
    assert contents[-1] != DROPPED


def test_started_anew_it_comes_back_to_where_it_was_at_no_cost(tmp_path: Path) -> None:
    script = [WRITE, tools(("submit", ARM)), text("done")]
    with world(tmp_path / "gateway") as (fake, doors):
        first = search(fake, next(doors), tmp_path / "worktree", script)
        assert len(fake.requests) == 3
    with world(tmp_path / "gateway") as (fake, doors):
        again = search(fake, next(doors), tmp_path / "worktree", script)
        assert fake.requests == []
    assert (tmp_path / "gateway/transcripts/c/e0/seed-7.jsonl").is_file()
    assert [one.id for one in again.desk.submitted] == [one.id for one in first.desk.submitted]


def test_links_and_second_names_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "oracle.txt").write_text("answers")
    root = tmp_path / "tree"
    root.mkdir()
    bench = Workbench(root)
    (root / "link.txt").symlink_to(tmp_path / "oracle.txt")
    (root / "folder").symlink_to(tmp_path)
    for path in ("link.txt", "folder/oracle.txt"):
        with pytest.raises(UsageError, match="link"):
            bench.read(path)
    with pytest.raises(UsageError, match="link"):
        bench.patch()
    bench.clear()
    assert (tmp_path / "oracle.txt").read_text() == "answers"
    (root / "second.txt").hardlink_to(tmp_path / "oracle.txt")
    with pytest.raises(UsageError, match="regular file"):
        bench.read("second.txt")
