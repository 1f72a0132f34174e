"""The forest plot by set: every mechanism on every set, and on all of them."""

from __future__ import annotations

import msgspec
import pytest

from harness.report.forest import set_plot
from tests.harness.report import build, pieces
from tests.harness.report.test_plots import ids, points, texts


def test_each_set_heads_its_mechanisms_and_all_sets_come_last() -> None:
    plot = set_plot(build.report())
    shown = [text for text in texts(plot) if text in ("humaneval", "embedded", "all sets", "stock")]
    assert shown == ["humaneval", "stock", "embedded", "stock", "all sets", "stock"]
    assert ids(plot, "point-") == ["point-1", "point-3", "point-5"]  # headings have no point
    assert "1.40x [1.32, 1.47]" in texts(plot)
    assert not {"null", "replay"} & set(texts(plot))  # calibration arms are no mechanisms


def test_the_points_lie_true_to_scale() -> None:
    plot = set_plot(build.report())
    one = points(plot, "one")[0][0]
    human, embedded, whole = (points(plot, f"point-{row}")[0][0] for row in (1, 3, 5))
    assert (human - one) / (whole - one) == pytest.approx(0.3956 / 0.3456, rel=1e-3)
    assert (embedded - one) / (whole - one) == pytest.approx(0.2956 / 0.3456, rel=1e-3)


def test_without_sets_to_tell_apart_it_is_left_out_and_says_why() -> None:
    silent = tuple(msgspec.structs.replace(arm, speedup_by_set=None) for arm in build.report().arms)
    reasons = [
        set_plot(report).reason
        for report in (
            build.invalid(),
            build.report(sets=(pieces.drawn("humaneval"),)),
            build.report(arms=silent),
            build.report(arms=(pieces.arm("ar"), pieces.arm("null"))),
        )
    ]
    assert reasons == [
        "the run is invalid, so no speedup is shown",
        "the run drew one set",
        "the report was written before speedups were told by set",
        "no mechanism was compared with ar",
    ]
