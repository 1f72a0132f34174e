from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent_loop.controller.judging import below_floor
from agent_loop.cost_model.ceiling import acceptance_ceiling, ceiling, fit_steps, step_seconds
from agent_loop.cost_model.floors import Machine, ModelSize, prefill_floor_s, response_floor, step_floor_s
from agent_loop.cost_model.machine import measure_machine, model_size
from agent_loop.watching import ceiling_text
from harness.oracle.stored import StoredRun
from harness.plan import ArmSpec
from harness.records import DecodeStep, Response
from tests.agent_loop.simulated import BACKEND, Host, make_loop
from tests.harness.tiny import VOCAB, write_llama

MACHINE = Machine(bytes_per_s=1e9, flops_per_s=1e11, launch_s=1e-6, how="made")
MODEL = ModelSize(parameters=10_000_000, weight_bytes=40_000_000)  # 40 ms a step to read


def response(
    arm: str, drafts: int, accepted: list[int], base: float, row: float, *, draft: float = 0.0
) -> Response:
    """Steps that take base + row * rows, and the drafter's time."""
    at, steps = int(1e8), []
    for kept in accepted:
        at += int((base + row * (drafts + 1) + draft) * 1e9)
        steps.append(
            DecodeStep(
                num_draft_tokens=drafts, num_accepted_tokens=kept, num_emitted_tokens=kept + 1, at_ns=at
            )
        )
    tokens = 1 + sum(kept + 1 for kept in accepted)
    return Response(
        prompt_id="p",
        arm=arm,
        launch=0,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=10,
        started_at=0.0,
        token_ids=tuple(range(tokens)),
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=int(1e8),
        end_ns=at,
        steps=tuple(steps),
    )


def run_of(*responses: Response) -> StoredRun:
    loop = make_loop()
    host = Host(Path("unused"), lambda params: 1.0)
    base = host.run(loop.job, "x")
    kinds = {"ar": "ar", "null": "null", "stock": "stock"}
    arms = tuple(
        msgspec.convert({"name": one, "kind": kinds[one], "backend": BACKEND}, ArmSpec)
        for one in dict.fromkeys(r.arm for r in responses)
    )
    plan = msgspec.structs.replace(base.job.plan, arms=arms)
    return StoredRun(msgspec.structs.replace(base.job, plan=plan), (), responses, base.report)


STOCK = response("stock", 4, [2, 1, 0, 4], 0.05, 0.002, draft=0.02)
FREE = [response("ar", 0, [0] * 6, 0.05, 0.002), response("null", 4, [0] * 6, 0.05, 0.002)]


def test_a_step_is_taken_apart_into_base_rows_and_drafter() -> None:
    fit = fit_steps(FREE)
    assert fit is not None
    assert fit.base_s == pytest.approx(0.05, rel=1e-3)
    assert fit.per_row_s == pytest.approx(0.002, rel=1e-2)
    found = {gap.component: gap for gap in ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL).gaps}
    assert found["drafter"].measured_s == pytest.approx(4 * 0.02, rel=1e-2)
    assert found["weights"].measured_s == pytest.approx(4 * 0.05, rel=1e-2)
    assert found["weights"].floor_s == pytest.approx(4 * 0.04)
    assert found["rows"].measured_s == pytest.approx(4 * 5 * 0.002, rel=2e-2)
    assert sum(gap.share for gap in found.values()) == pytest.approx(1.0)


def test_rows_have_a_floor_where_computing_takes_longer_than_reading() -> None:
    found = {gap.component: gap for gap in ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL).gaps}
    assert found["rows"].floor_s == 0.0  # five rows are computed in 1 ms, while 40 ms of weights are read
    slow = msgspec.structs.replace(MACHINE, flops_per_s=2e9)  # 50 ms
    found = {gap.component: gap for gap in ceiling(run_of(STOCK, *FREE), "stock", slow, MODEL).gaps}
    assert found["rows"].floor_s == pytest.approx(4 * 0.01)
    alone = {gap.component: gap for gap in ceiling(run_of(STOCK), "stock", slow, MODEL).gaps}
    assert "rows" not in alone
    assert alone["weights"].floor_s == pytest.approx(4 * 0.05)
    assert not alone["weights"].below_floor
    # Larger steps that were quicker tell no growth, and no floor of it either.
    noisy = [response("ar", 0, [0] * 6, 0.07, 0.0), response("null", 4, [0] * 6, 0.06, 0.0)]
    gaps = ceiling(run_of(STOCK, *noisy), "stock", MACHINE, MODEL).gaps
    assert "rows" not in {gap.component for gap in gaps}
    assert not any(gap.below_floor for gap in gaps)


def test_gaps_are_ranked_and_leave_room_for_a_speedup_and_no_more() -> None:
    found = ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL)
    shares = [gap.share for gap in found.gaps]
    assert shares == sorted(shares, reverse=True)
    assert found.speedup == pytest.approx(found.seconds / found.floor_s)
    assert 0.0 < found.closable_share < 1.0
    assert "at most" in ceiling_text(found)


def test_a_measurement_below_its_floor_is_flagged_and_never_counted_as_a_gap() -> None:
    slow = msgspec.structs.replace(MACHINE, bytes_per_s=4e8)  # a peak that this run beats
    found = {gap.component: gap for gap in ceiling(run_of(STOCK, *FREE), "stock", slow, MODEL).gaps}
    assert found["weights"].below_floor
    assert found["weights"].share == 0.0
    assert "BELOW ITS FLOOR" in found["weights"].basis


def test_a_profile_splits_the_whole_step() -> None:
    profile = {"weights": 0.6, "attention": 0.1, "host": 0.3}
    found = {
        gap.component: gap for gap in ceiling(run_of(STOCK, *FREE), "stock", MACHINE, MODEL, profile).gaps
    }
    step = 0.05 + 5 * 0.002 + 0.02
    assert found["host"].measured_s == pytest.approx(4 * step * 0.3, rel=1e-2)
    assert found["attention"].measured_s == pytest.approx(4 * step * 0.1, rel=1e-2)
    assert "rows" not in found


def test_the_acceptance_ceiling_carries_the_last_rate_on() -> None:
    assert acceptance_ceiling([0, 0], [3, 3]) == 1.0
    halves = acceptance_ceiling([0, 1], [2, 2])  # half of the first drafts, then the same rate on
    assert halves == pytest.approx(2.0, abs=1e-3)
    assert acceptance_ceiling([2, 2], [3, 3]) == 17.0


def test_a_run_without_steps_has_no_ceiling() -> None:
    with pytest.raises(ValueError, match="no response with verify steps"):
        ceiling(run_of(STOCK, *FREE), "other", MACHINE, MODEL)


def test_an_instant_answer_is_below_the_floor_and_an_honest_one_is_not() -> None:
    floor = response_floor(MACHINE, MODEL)
    assert below_floor([STOCK], [STOCK], floor) is None
    quick = msgspec.structs.replace(
        STOCK, first_token_ns=1000, end_ns=2000, steps=(), prefill_tokens=len(STOCK.token_ids)
    )
    found = below_floor([STOCK, quick], [STOCK], floor)
    assert found is not None
    assert found[0] is quick


def test_peaks_of_a_busy_machine_convict_no_honest_response_and_still_an_instant_one() -> None:
    busy = response_floor(msgspec.structs.replace(MACHINE, bytes_per_s=1e6, flops_per_s=1e6), MODEL)
    assert busy(STOCK) > (STOCK.end_ns or 0) / 1e9  # stock itself would be below it
    faster = msgspec.structs.replace(
        STOCK, prefill_tokens=len(STOCK.token_ids), end_ns=int((STOCK.end_ns or 0) / 4), steps=()
    )
    quick = msgspec.structs.replace(STOCK, first_token_ns=1000, end_ns=2000)
    assert below_floor([faster], [STOCK], busy) is None
    assert below_floor([quick], [STOCK], busy) is not None


def test_floors_are_computed_as_they_are_told() -> None:
    assert step_floor_s(MACHINE, MODEL, 1) == pytest.approx(0.04)
    assert prefill_floor_s(MACHINE, MODEL, 1000) == pytest.approx(0.2)
    assert len(step_seconds(STOCK)) == 4


def test_a_machine_and_a_target_have_sizes(tmp_path: Path) -> None:
    deployment = make_loop().job.deployment
    machine = measure_machine(
        msgspec.structs.replace(
            deployment, target=msgspec.structs.replace(deployment.target, dtype="float32")
        )
    )
    assert machine.bytes_per_s > 1e8
    assert machine.flops_per_s > 1e8
    size = model_size(write_llama(tmp_path / "m"), deployment)
    assert size is not None
    layer = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48
    assert size.parameters == 2 * layer + VOCAB * 32
    assert size.weight_bytes == 2 * size.parameters
    assert model_size(tmp_path, deployment) is None
