"""Probes at the end of a run: each can pass, fail, and give no verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.audits import probe_audits
from harness.measure.probes import delay_seen, no_faster, probe, repetition
from harness.measure.supervise import run_launch
from harness.measure.worker import SystemClock
from harness.paths import RunFolder
from harness.plan import ArmSpec
from harness.protocols import Clock, Exchange
from harness.records import Chunk, DecodeRequest, Sampling, StepEvent
from harness.storage import write_lines
from tests.harness.fakes import BACKEND, FakeClock, ScriptedSession, make_job, make_prompts

MS = 1_000_000


class Server:
    """Answers two tokens in ten milliseconds; in one where it has met the prompt and keeps answers."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.keeps, self.met = keeps, set[tuple[int, ...]]()

    def describe(self) -> dict[str, Any]:
        return {"arms": {"stock": {}}}

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        pass

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        (request,) = requests
        took = 1 * MS if self.keeps and request.prompt_token_ids in self.met else 10 * MS
        self.met.add(request.prompt_token_ids)
        chunks = (Chunk(num_tokens=2, at_ns=took),)
        return [
            Exchange(
                sent_ns=0, end_ns=took, token_ids=(1, 2), chunks=chunks, finish_reason="length", text="a"
            )
        ]

    def close(self) -> None:
        pass


def requests(count: int = 8) -> tuple[DecodeRequest, ...]:
    return tuple(
        DecodeRequest(
            request_id=f"own/p{n}", prompt_token_ids=tuple(range(n, n + 24)), sampling=Sampling(max_tokens=2)
        )
        for n in range(count)
    )


@pytest.mark.parametrize("keeps", [False, True])
def test_a_server_that_keeps_answers_is_caught_inside_the_run(keeps: bool) -> None:
    server = Server(keeps=keeps)
    server.met |= {request.prompt_token_ids for request in requests()}  # it has met those of the run
    found = repetition(server, "stock", requests(), 0, FakeClock())
    assert [audit.passed for audit in found] == [not keeps, not keeps]
    assert len(server.met) == 8 + 8 + 8  # strangers, and those of the run, which were not sent again


def test_few_pairs_reject_nothing_and_a_slight_gain_is_no_cache() -> None:
    assert no_faster("x", [1.0] * 7, [9.0] * 7).passed is False  # 7 of 7: p = 1/128
    assert no_faster("x", [1.0] * 6, [9.0] * 6).passed is True  # 6 of 6: p = 1/64
    assert no_faster("x", [1.0] * 20, [1.05] * 20).passed is True


def test_a_delay_that_only_some_prompts_show_gives_no_verdict() -> None:
    class Uneven(SystemClock):
        """Stands still during two of three requests."""

        looks = 0

        def monotonic_ns(self) -> int:
            Uneven.looks += 1
            return super().monotonic_ns() if Uneven.looks > 25 else 1000 * Uneven.looks

    job = make_job(max_tokens=9)
    session = ScriptedSession(job.deployment, job.plan.arms)
    asked = tuple(
        DecodeRequest(request_id=f"p{n}", prompt_token_ids=(1, 2), sampling=job.plan.sampling)
        for n in range(3)
    )
    assert delay_seen(session, "stock", asked, 5.0, SystemClock()).passed is True
    found = delay_seen(session, "stock", asked, 5.0, Uneven())
    assert found.passed is None, found.detail


class Slowed(ScriptedSession):
    """Takes its time for each step, more for some and less for others."""

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        for number, event in enumerate(super().stream(arm, requests)):
            time.sleep(0.02 + 0.004 * (number % 3))
            yield event


class Blind(SystemClock):
    """Sees the engine's own work only: what the measurer puts between its steps is left out."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic_ns(self) -> int:
        self.looks += 1
        return 20_000_000 * self.looks


def test_a_delay_is_long_beside_the_steps_it_is_put_into() -> None:
    """A busy machine alone fails nothing; a clock that does not see the delay does."""
    job = make_job(max_tokens=9)
    session = Slowed(job.deployment, job.plan.arms)
    asked = tuple(
        DecodeRequest(request_id=f"p{n}", prompt_token_ids=(1, 2), sampling=job.plan.sampling)
        for n in range(3)
    )
    found = delay_seen(session, "stock", asked, 1.0, SystemClock())
    assert found.passed is not False
    delay_ms = float(found.detail.split(" ms ", maxsplit=1)[0])
    assert delay_ms > 9.0
    blind = delay_seen(session, "stock", asked, 1.0, Blind())
    assert blind.passed is False, blind.detail


def test_the_last_launch_is_probed_and_what_it_says_becomes_audits(tmp_path: Path) -> None:
    job, folder = make_job(launches=2, capture_logits=True), RunFolder(tmp_path / "run")
    folder.partial.mkdir(parents=True)
    write_lines(folder.prompts, make_prompts())
    told = [run_launch(job, folder, 3, launch, lambda amount: None, float)[1] for launch in (0, 1)]
    assert "probes" not in told[0][BACKEND]
    audits = {audit.name: audit for audit in probe_audits(told)}
    assert set(audits) == {"capturing costs nothing: ar", "a delay is seen: stock"}
    assert audits["a delay is seen: stock"].passed is True
    assert probe_audits(told[:1]) == ()


def test_a_probe_that_cannot_be_made_says_why_and_the_run_goes_on() -> None:
    arms = (
        ArmSpec(name="ar", kind="ar", backend=BACKEND),
        ArmSpec(name="stock", kind="stock", backend=BACKEND, params={"drafts": 2, "fail_on": "own/p0"}),
    )
    job = make_job(arms)
    session = ScriptedSession(job.deployment, arms)
    found = probe(job, {"ar": session, "stock": session}, make_prompts(), 0, SystemClock())
    (audit,) = found["stock"]
    assert audit.passed is None
    assert "could not be probed" in audit.detail
    assert "ar" not in found  # nothing is captured, so that nothing can cost


def test_servers_are_probed_by_repetition_where_there_are_prompts_enough() -> None:
    smoke = make_job()
    plan = msgspec.structs.replace(smoke.plan, label="full")
    job = msgspec.structs.replace(smoke, plan=plan)
    sessions = {"ar": Server(), "stock": Server(keeps=True)}
    lines = [
        msgspec.structs.replace(line, token_ids=request.prompt_token_ids)
        for line, request in zip(make_prompts(8), requests(), strict=True)
    ]
    found = probe(job, sessions, lines, 0, FakeClock())
    assert [audit.passed for audit in found["ar"]] == [True, True]
    assert [audit.passed for audit in found["stock"]] == [None, None]
    assert all("audit cache --url" in audit.detail for audit in found["stock"])
    assert probe(smoke, sessions, lines, 0, FakeClock()) == {}  # a smoke run has its strangers
    assert probe(job, sessions, lines[:7], 0, FakeClock()) == {}
