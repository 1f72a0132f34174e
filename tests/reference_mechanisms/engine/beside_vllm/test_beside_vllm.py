"""The reference engine beside vLLM: what its worker answers, and how pairs of times become a table."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from reference_mechanisms.engine.beside_vllm import comparing, worker
from reference_mechanisms.engine.beside_vllm.resident import Resident
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.weight12.plugin.step_times import rounds
from reference_mechanisms.weight12.plugin.step_times.engine import Facts
from reference_mechanisms.weight12.plugin.step_times.steps import Call
from tests.reference_mechanisms.engine.bench import small
from tests.reference_mechanisms.weight12 import step_times_worker

FAKE = Path(step_times_worker.__file__)
PROMPT, OUTPUT, LENGTH = 9, 40, 3.0


@pytest.fixture(scope="module")
def engine() -> Resident:
    target = small.target(torch.device("cpu"), torch.float64)
    drafts = small.BLOCK - 1
    return Resident(target, PROMPT + OUTPUT, drafter=small.drafter(target), drafts=drafts, length=LENGTH)


def test_drafts_are_accepted_as_the_length_says_and_change_no_token(engine: Resident) -> None:
    prompt = list(range(PROMPT))
    with torch.inference_mode():
        calls = [engine.call([prompt], OUTPUT) for _ in range(12)]
    assert {call.tokens for call in calls} == {OUTPUT}
    steps = sum(call.drafts or 0 for call in calls) / len(calls)
    assert (OUTPUT - 1) / steps == pytest.approx(LENGTH, rel=0.25)


def test_without_a_drafter_nothing_is_drafted() -> None:
    engine = Resident(small.target(torch.device("cpu"), torch.float64), PROMPT + OUTPUT)
    with torch.inference_mode():
        call = engine.call([[1, 2, 3]], 5)
    assert (call.tokens, call.drafts) == (5, None)


def test_two_prompts_at_once_are_refused(engine: Resident) -> None:
    with pytest.raises(MechanismError, match="2 prompts"):
        engine.call([[1], [2]], 4)


ASKED = worker.Asked(shape="Qwen3-8B", weights="bf16", drafts=0, length=1.0, positions=64)
FACTS = msgspec.convert(step_times_worker.FACTS, Facts)


def answers(lines: bytes) -> list[dict[str, object]]:
    def call(prompts: list[list[int]], output: int) -> Call:
        if output > 9:
            raise MechanismError("too long")
        assert all(0 <= token < 7 for prompt in prompts for token in prompt)
        return Call(batch=len(prompts), output=output, tokens=len(prompts[0]), wall_s=0.5)

    out = io.BytesIO()
    with contextlib.suppress(MechanismError, msgspec.ValidationError):
        worker.main(ASKED, lambda asked: (FACTS, 7, call), io.BytesIO(lines), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_worker_answers_each_line_and_tells_its_failure() -> None:
    told = answers(
        b'{"batch":1,"prompt":3,"output":4}\n{"batch":1,"prompt":3,"output":99}\n{"batch":1,"prompt":1,"output":1}\n'
    )
    assert told[0]["device"] == "a device"
    assert told[1] == {"batch": 1, "output": 4, "tokens": 3, "wall_s": 0.5, "drafts": None}
    assert told[2] == {"error": "MechanismError: too long"}
    assert len(told) == 3


def test_an_unknown_field_is_told() -> None:
    assert "unknown field `batches`" in str(answers(b'{"batches":1,"prompt":3,"output":4}\n')[-1]["error"])


def fake(kind: str, mode: str, batches: Sequence[int]) -> list[str]:
    """Workers by rule: two milliseconds a step for vLLM, one for the reference engine."""
    del batches
    step = 1.0 if kind == "bf16" else 0.5
    return [sys.executable, str(FAKE), "works", str(step), "-" if mode == "ar" else "6.5"]


def test_steps_and_requests_are_compared_by_round_and_written(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"division": "system", "exact_tokens": 7}')
    plan = rounds.Plan(
        engines=comparing.engines(["weight12"], ["ar", "dflash"]), batches=(1,), rounds=2, limit_s=60
    )
    found = rounds.measure(plan, tmp_path / "logs", lambda found: None, fake)
    comparing.write(tmp_path, found, "command")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["exact_tokens"] == 7
    assert summary["ar_step_ms"] == pytest.approx({"stock": 2.0, "weight12": 1.0})
    assert summary["k15_step_ms"] == pytest.approx({"stock": 2.0, "same_drafts": 1.0})
    told = json.loads((tmp_path / "beside-vllm.json").read_text())
    row = told["table"][1]
    assert (row["mode"], row["engine"]) == ("ar", "own-weight12")
    assert row["step_speedup"]["median"] == pytest.approx(2)
    assert row["request_speedup"]["median"] == pytest.approx(0.9 / 0.5)
    assert row["tokens_per_second"] == pytest.approx(400 / 0.5)
    assert "own-weight12" in comparing.text(found)


def test_commands_are_of_the_right_workers() -> None:
    assert "step_times.worker" in comparing.command("bf16", "ar", (1,))[3]
    words = comparing.command("own-weight12", "dflash", (1,))
    asked = msgspec.json.decode(words[-1], type=worker.Asked)
    assert (words[3], asked.weights, asked.drafts) == (comparing.WORKER, "weight12", 15)
