"""The waterfall: stock from autoregressive decoding, every mechanism from stock."""

from __future__ import annotations

import msgspec
import pytest

from harness.plan import Job
from harness.report.waterfall import waterfall_plot
from harness.results import ArmResult, Report
from tests.harness.report import build, pieces
from tests.harness.report.test_plots import ids, points, texts, tick_place


def candidate(**changes: object) -> Report:
    """`ar`, `stock`, and a candidate with the speed of `replay`."""
    arms = (pieces.arm("ar"), pieces.arm("stock"), pieces.arm("replay"))
    own: ArmResult = msgspec.structs.replace(arms[2], name="mine", kind="candidate", **changes)
    job: Job = pieces.job(arms=("ar", "stock"))
    spec = msgspec.structs.replace(
        job.plan.arm("stock"), name="mine", kind="candidate", params={"drafter": "eagle3", "drafts": 1}
    )
    plan = msgspec.structs.replace(job.plan, arms=(*job.plan.arms, spec))
    return build.report(arms=(*arms[:2], own), job=msgspec.structs.replace(job, plan=plan))


def test_stock_leads_from_one_and_a_mechanism_from_stock() -> None:
    plot = waterfall_plot(candidate())
    assert ids(plot, "bar-") == ["bar-0", "bar-1", "bar-2"]
    zero, one = tick_place(plot, "0"), tick_place(plot, "1")
    edges = []
    for row in range(3):
        across = [x for x, _ in points(plot, f"bar-{row}")]
        edges.append(tuple((x - zero) / (one - zero) for x in (min(across), max(across))))
    assert edges[0] == pytest.approx((0.0, 1.0), abs=1e-3)
    assert edges[1] == pytest.approx((1.0, 1.3456), abs=1e-3)
    assert edges[2] == pytest.approx((1.3456, 2.4321), abs=1e-3)
    shown = " ".join(texts(plot))
    assert "1.81x over stock" in shown  # 2.4321 / 1.3456
    assert "eagle3, 1 draft" in shown
    assert "stock, 3 drafts" in shown


def test_calibration_arms_are_no_step_of_it() -> None:
    shown = texts(waterfall_plot(build.report()))
    assert not {"null", "replay"} & set(shown)


def test_an_arm_whose_tokens_are_not_stocks_is_hatched_and_gains_nothing() -> None:
    judged = pieces.arm("stock").losslessness
    assert judged is not None
    violated = waterfall_plot(
        candidate(losslessness=msgspec.structs.replace(judged, stock_verdict="violated"))
    )
    assert violated.svg is not None
    assert "<pattern" in violated.svg
    assert "tokens violated" in texts(violated)
    assert not any("over stock" in text for text in texts(violated))
    fine = waterfall_plot(candidate()).svg
    assert fine is not None
    assert "<pattern" not in fine


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (build.invalid(), "the run is invalid, so no speedup is shown"),
        (build.report(arms=(pieces.arm("ar"), pieces.arm("null"))), "no mechanism was compared with ar"),
    ],
)
def test_without_a_mechanism_to_show_it_says_so(report: Report, reason: str) -> None:
    assert waterfall_plot(report).reason == reason
