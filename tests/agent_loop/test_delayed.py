"""The positive control: an engine's own tokens, later by a known share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_loop.delayed import DelayedSession, open_session, params_of
from harness.errors import UsageError
from harness.plan import ArmSpec, Param
from harness.records import DecodeRequest, Sampling, StepEvent
from tests.harness.tiny import deployment_of, write_llama

ENGINE = "reference_mechanisms.backend:open_session"
STOCK = ArmSpec(name="stock", kind="stock", backend=ENGINE, params={"drafter": "ngram", "drafts": 2})
REQUEST = DecodeRequest(request_id="p", prompt_token_ids=tuple(range(96)), sampling=Sampling(max_tokens=8))


def arm(**params: Param) -> ArmSpec:
    return ArmSpec(name="c", kind="candidate", backend="agent_loop.delayed:open_session", params=params)


class Ticking:
    """An engine whose events take known times, on a clock that only it and waiting move."""

    def __init__(self, *took: float) -> None:
        self.now, self.took = 100.0, took
        self.waited: list[float] = []

    def describe(self) -> dict[str, Any]:
        return {"engine": "ticking"}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        self.now += 9.0

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for index, took in enumerate(self.took):
            self.now += took
            yield StepEvent(index=0, kind="step" if index else "prefill", token_ids=(index,))

    def close(self) -> None:
        self.now = -1.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def test_each_event_comes_later_by_a_share_of_its_own_time() -> None:
    engine = Ticking(4.0, 1.0, 0.5)
    session = DelayedSession(engine, {"c": 0.5}, engine.clock, engine.wait)
    session.prepare("c", [REQUEST])
    ends = []
    for event in session.stream("c", [REQUEST]):
        ends.append((event.token_ids, engine.now - 109.0))
        engine.now += 7.0  # what the caller does with an event is not the engine's time
    assert engine.waited == [2.0, 0.5, 0.25]
    assert ends == [((0,), 6.0), ((1,), 14.5), ((2,), 22.25)]
    assert session.describe() == {"engine": "ticking", "delays": {"c": 0.5}}
    session.close()
    assert engine.now == -1.0


def test_waiting_is_as_long_as_it_says() -> None:
    session = DelayedSession(Ticking(), {})
    for seconds in (0.0005, 0.01):
        began = time.perf_counter()
        session._wait(seconds)
        assert time.perf_counter() - began >= seconds


def test_delayed_stock_emits_what_stock_emits(tmp_path: Path) -> None:
    deployment = deployment_of(write_llama(tmp_path / "m"))
    session = open_session(deployment, [arm(**params_of(STOCK, 1.0))])
    assert session.describe()["drafters"] == {"c": "ngram"}
    mine = [token for event in session.stream("c", [REQUEST]) for token in event.token_ids]
    theirs = [token for event in session._inner.stream("c", [REQUEST]) for token in event.token_ids]
    session.close()
    assert mine == theirs
    assert len(mine) == 8


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"delay": 1.0}, "needs `delayed_engine`"),
        ({"delayed_engine": ENGINE}, "and `delay`, 0 or more"),
        ({"delayed_engine": ENGINE, "delay": -1.0}, "and `delay`, 0 or more"),
        ({"delayed_engine": "nothing", "delay": 1.0}, "is not of the form"),
        ({"delayed_engine": ENGINE, "delay": 1.0, "drafter": "x"}, r"arms\[c\].params: `drafter`"),
    ],
    ids=["no engine", "no delay", "hurried", "name", "inner"],
)
def test_a_wrong_parameter_names_its_arm(tmp_path: Path, params: dict[str, Param], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_session(deployment_of(tmp_path / "unused"), [arm(**params)])


def test_several_engines_are_refused(tmp_path: Path) -> None:
    arms = [arm(delayed_engine=name, delay=1.0) for name in (ENGINE, "another:open")]
    with pytest.raises(UsageError, match="one for all delayed arms"):
        open_session(deployment_of(tmp_path / "unused"), arms)
