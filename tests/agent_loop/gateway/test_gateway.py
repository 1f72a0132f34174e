"""The gateway as a process of its own between an explorer and a scripted API."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_loop.assembling import Folders
from agent_loop.gateway.patience import Patience
from agent_loop.gateway.settings import Settings
from agent_loop.gateway.starting import Door, guests, running, with_key
from agent_loop.records import Budget
from harness.errors import InvalidRun, UsageError
from tests.agent_loop.fake_messages import KEY, FakeMessages, Play, fault, serving, text

MODEL = "claude-opus-5-5"
TURN_DOLLARS = (100 * 4.0 + 20 * 20.0) / 1e6
MOST_DOLLARS = (2048 + 200) * 4.0 / 1e6 + 100 * 20.0 / 1e6  # that a turn of `ask` can cost
PATIENCE = Patience(attempts=3, longest_wait_s=0.5, all_waits_s=1.0, first_wait_s=0.01, idle_s=5.0)
EXPLORERS = [f"e{number}" for number in range(40)]
TIGHT = {"two-turns": Budget(turns=2), "one-at-a-time": Budget(dollars=1.4 * MOST_DOLLARS)}


class World:
    """A gateway that many tests share, each with an explorer of its own."""

    def __init__(self, folder: Path, fake: FakeMessages, doors: Mapping[str, Door]) -> None:
        self.folder, self.fake, self.doors = folder, fake, doors
        self.left = iter(EXPLORERS)

    def enter(self, script: Sequence[Play | list[Play]], name: str | None = None) -> Door:
        """Play a script to an explorer who has spent nothing."""
        self.fake.begin(script)
        return self.doors[next(self.left) if name is None else name]


@contextlib.contextmanager
def gateway(
    folder: Path,
    script: Sequence[Play | list[Play]],
    *,
    campaign: Budget | None = None,
    explorers: Mapping[str, Budget] | None = None,
) -> Iterator[World]:
    """A gateway in a process of its own; to start one costs half a second."""
    with serving(script) as fake:
        settings = Settings(
            campaign="c",
            folder=str(folder),
            budget=campaign or Budget(),
            explorers=guests(explorers or {"e": Budget()}),
            key=KEY,
            upstream=fake.url,
            patience=PATIENCE,
        )
        with running(settings) as doors:
            yield World(folder, fake, doors)
        assert fake.problems == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    everybody = dict.fromkeys(EXPLORERS, Budget()) | TIGHT
    with gateway(tmp_path_factory.mktemp("gateway"), [text("")], explorers=everybody) as world:
        yield world


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """The shared gateway; what a test asked the API must have been right."""
    yield shared
    assert shared.fake.problems == []


def ask(door: Door, said: str = "hello", **fields: Any) -> tuple[int, str]:
    body = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": said}], **fields}
    headers = {"content-type": "application/json", "authorization": f"Bearer {door.token}"}
    request = urllib.request.Request(f"{door.url}/v1/messages", json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scope(door: Door) -> str:
    """Of the explorer: "campaign/explorer"."""
    return next(name for name in door.spent() if name.count("/") == 1)


def spent(door: Door, of: str = "") -> dict[str, float]:
    return dict(door.spent()[of or scope(door)]["spent"])


def lines(world: World, door: Door) -> list[dict[str, Any]]:
    """Exchanges of an explorer; the gateway has written them before it answers for its scope."""
    path = world.folder / "transcripts" / f"{scope(door)}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_is_answered_paid_and_written_down(world: World, stream: bool) -> None:
    door = world.enter([text("hi")])
    before = spent(door, "c")
    status, answer = ask(door, stream=stream)
    assert status == 200
    assert "hi" in answer
    after = spent(door, "c")
    campaign = {field: after[field] - before[field] for field in after}
    for told in (campaign, spent(door)):
        assert told["dollars"] == pytest.approx(TURN_DOLLARS)
        assert (told["input_tokens"], told["output_tokens"], told["turns"]) == (100, 20, 1)
    (line,) = lines(world, door)
    assert line["complete"]
    assert line["request"]["messages"] == [{"role": "user", "content": "hello"}]
    assert line["dollars"] == pytest.approx(TURN_DOLLARS)
    assert line["request_id"] == "req_1"


def test_the_four_kinds_of_input_have_their_own_prices(world: World) -> None:
    usage = {
        "cache_creation_input_tokens": 1000,
        "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
        "cache_read_input_tokens": 5000,
    }
    door = world.enter([text("hi", usage=usage)])
    ask(door)
    expected = TURN_DOLLARS + (400 * 5.0 + 600 * 8.0 + 5000 * 0.2) / 1e6
    assert spent(door)["dollars"] == pytest.approx(expected)
    assert spent(door)["input_tokens"] == 6100


@pytest.mark.parametrize(
    "first",
    [
        fault(429, "rate_limit_error", retry_after="0.05"),
        fault(529, "overloaded_error"),
        fault(500),
        {"cut": "before"},
    ],
    ids=["429", "529", "500", "cut before the answer"],
)
def test_what_passes_is_waited_for(world: World, first: Play) -> None:
    door = world.enter([[first, text("hi")]])
    assert ask(door, stream=True)[0] == 200
    assert len(world.fake.requests) == 2
    assert spent(door)["dollars"] == pytest.approx(TURN_DOLLARS)
    assert lines(world, door)[0]["attempts"] == 2


@pytest.mark.parametrize(
    ("first", "status", "requests"),
    [
        (fault(429, "rate_limit_error", retry_after="3600"), 429, 1),
        (fault(500, x_should_retry="false"), 500, 1),
        (fault(400, "invalid_request_error"), 400, 1),
        (fault(529, "overloaded_error"), 529, 3),
    ],
    ids=["an hour", "not to be retried", "our own fault", "patience at its end"],
)
def test_what_does_not_pass_goes_to_the_explorer_unpaid(
    world: World, first: Play, status: int, requests: int
) -> None:
    door = world.enter([first])
    assert ask(door)[0] == status
    assert len(world.fake.requests) == requests
    assert spent(door)["dollars"] == 0.0
    assert spent(door)["turns"] == 1


@pytest.mark.parametrize("fields", [{"cut": "middle"}, {"error": "overloaded_error"}], ids=["cut", "error"])
def test_a_stream_that_breaks_ends_with_an_error_and_is_paid_as_far_as_it_came(
    world: World, fields: dict[str, Any]
) -> None:
    door = world.enter([text("hi", **fields)])
    status, answer = ask(door, stream=True)
    assert status == 200
    assert "event: error" in answer
    assert 100 * 4.0 / 1e6 < spent(door)["dollars"] <= (100 * 4.0 + 100 * 20.0) / 1e6
    assert not lines(world, door)[0]["complete"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"usage": "missing"}, {"junk": True}], ids=["no usage", "no JSON"])
def test_an_answer_that_does_not_tell_its_cost_costs_what_was_reserved(
    world: World, fields: dict[str, Any], stream: bool
) -> None:
    door = world.enter([text("hi", **fields)])
    ask(door, stream=stream)
    assert spent(door)["output_tokens"] == 100
    assert spent(door)["input_tokens"] > 2048


def test_a_budget_that_is_spent_stops_before_the_request_leaves(world: World) -> None:
    door = world.enter([text("hi")], "two-turns")
    assert [ask(door)[0] for _ in range(3)] == [200, 200, 429]
    error = json.loads(ask(door)[1])["error"]
    assert error["details"] == {"error_code": "budget_spent", "field": "turns", "scope": "c/two-turns"}
    assert len(world.fake.requests) == 2


def test_budgets_nest_and_the_tightest_holds(tmp_path: Path) -> None:
    budgets = {"e": Budget(turns=9)}
    with gateway(tmp_path, [text("hi")], campaign=Budget(turns=3), explorers=budgets) as world:
        door = world.doors["e"]
        first, second = door.attempt("one", Budget(turns=1)), door.attempt("two")
        assert ask(first)[0] == 200
        assert json.loads(ask(first)[1])["error"]["details"]["scope"] == "c/e/one"
        assert [ask(second)[0] for _ in range(3)] == [200, 200, 429]
        assert json.loads(ask(second)[1])["error"]["details"]["scope"] == "c"
        with pytest.raises(InvalidRun, match="opened with the token of an explorer"):
            first.attempt("below")


def test_money_is_set_aside_while_a_request_is_on_its_way(world: World) -> None:
    answer = threading.Event()
    door = world.enter([text("hi", held=answer)], "one-at-a-time")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, door)
        try:
            while not world.fake.requests:
                assert not first.done()
                time.sleep(0.005)
            assert [ask(door)[0] for _ in range(3)] == [429, 429, 429]
            assert len(world.fake.requests) == 1
        finally:
            answer.set()
        assert first.result()[0] == 200
    assert ask(door)[0] == 200  # settled: the worst case did not come


def test_twenty_at_once_are_all_counted(world: World) -> None:
    door = world.enter([text("hi")])
    with ThreadPoolExecutor(20) as pool:
        assert {status for status, _ in pool.map(lambda _: ask(door, stream=True), range(20))} == {200}
    assert spent(door)["turns"] == 20
    assert spent(door)["dollars"] == pytest.approx(20 * TURN_DOLLARS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "claude-unheard-of"}, "has no price"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"speed": "fast"}, "speed"),
        ({"mcp_servers": [{"url": "https://example.org"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"type": "code_execution_20250825", "name": "x"}]}, "code_execution"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "https://example.org/x"}}
                        ],
                    }
                ]
            },
            "fetched elsewhere",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_ways_out_and_what_has_no_price_are_refused(world: World, fields: dict[str, Any], said: str) -> None:
    status, answer = ask(world.enter([text("hi")]), **fields)
    assert status == 400
    assert said in answer
    assert world.fake.requests == []


def test_a_stranger_is_refused_and_so_is_the_key_itself(world: World) -> None:
    door = world.enter([text("hi")])
    assert ask(Door(door.url, "guessed"))[0] == 401
    assert ask(Door(door.url, KEY))[0] == 401
    assert world.fake.requests == []


def test_the_key_is_in_no_file_though_the_api_says_it(world: World) -> None:
    door = world.enter([fault(400, "invalid_request_error")])
    ask(door)
    assert KEY in (world.fake.headers[0].get("authorization") or "")
    assert "[key]" in lines(world, door)[0]["response"]
    written = [path for path in world.folder.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"ledger.jsonl", f"{scope(door).partition('/')[2]}.jsonl"}
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_a_second_life_knows_what_was_spent_and_answers_what_was_answered(tmp_path: Path) -> None:
    with gateway(tmp_path, [text("first")]) as world:
        assert "first" in ask(world.doors["e"], stream=True)[1]
    with gateway(tmp_path, [text("second")], explorers={"e": Budget(turns=2)}) as world:
        door = world.doors["e"]
        assert "first" in ask(door, stream=True)[1]
        assert world.fake.requests == []
        assert spent(door)["turns"] == 1
        assert "second" in ask(door, stream=True)[1]  # once each
        assert ask(door)[0] == 429
        assert spent(door)["dollars"] == pytest.approx(2 * TURN_DOLLARS)


def test_what_a_campaign_has_spent_is_read_while_its_gateway_lives(tmp_path: Path) -> None:
    with gateway(tmp_path / "gateway", [text("yes")]) as world:
        door = world.doors["e"]
        ask(door)
        found = Folders(tmp_path).asked
        assert found is not None
        assert found.dollars == pytest.approx(TURN_DOLLARS)
        assert found.turns == 1
        assert spent(door)["dollars"] == pytest.approx(found.dollars)  # it was not disturbed
    assert Folders(tmp_path / "elsewhere").asked is None


def test_a_reservation_that_a_killed_gateway_left_counts_in_full(tmp_path: Path) -> None:
    with gateway(tmp_path, [text("hi")]) as world:
        ask(world.doors["e"])
    ledger = tmp_path / "ledger.jsonl"
    kept = [line for line in ledger.read_text().splitlines() if '"settled"' not in line]
    ledger.write_text("\n".join(kept) + '\n{"kind":"set')
    with gateway(tmp_path, [text("hi")]) as world:
        assert spent(world.doors["e"])["output_tokens"] == 100
        assert spent(world.doors["e"])["input_tokens"] > 2048


def test_the_key_leaves_the_environment_for_the_gateway(tmp_path: Path) -> None:
    settings = Settings(campaign="c", folder=str(tmp_path), explorers={})
    environment = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "http://elsewhere", "PATH": "/bin"}
    assert with_key(settings, None, environment).key == KEY
    assert environment == {"PATH": "/bin"}
    with pytest.raises(UsageError, match="--key-file"):
        with_key(settings, None, environment)


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    settings = Settings(campaign="c", folder=str(tmp_path), explorers={})
    with (
        pytest.raises(UsageError, match="absent"),
        running(with_key(settings, tmp_path / "absent", {})),
    ):
        pass
