"""Plots with a known answer, read back from the SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from itertools import pairwise

import matplotlib as mpl
import msgspec
import pytest

from harness.report.forest import speedup_plot
from harness.report.picture import Plot
from harness.report.plots import accepted_plot, plots, position_plot, timeline_plot
from harness.results import Report
from tests.harness.report import build, pieces

SVG = "{http://www.w3.org/2000/svg}"


def svg(plot: Plot) -> ET.Element:
    assert plot.reason is None
    assert plot.svg is not None
    return ET.fromstring(plot.svg)  # noqa: S314


def ids(plot: Plot, stem: str) -> list[str]:
    """Ids of drawn data that begin so, without the prefix of the plot."""
    found = (element.get("id", "").removeprefix(f"{plot.name}-") for element in svg(plot).iter())
    return [name for name in found if name.startswith(stem)]


def texts(plot: Plot) -> list[str]:
    return ["".join(element.itertext()) for element in svg(plot).iter(f"{SVG}text")]


def points(plot: Plot, name: str) -> list[tuple[float, float]]:
    """Corners of a drawn line or bar, y downwards; of markers the places."""
    group = next(e for e in svg(plot).iter() if e.get("id") == f"{plot.name}-{name}")
    uses = list(group.iter(f"{SVG}use"))
    if uses:
        return [(float(use.get("x", "nan")), float(use.get("y", "nan"))) for use in uses]
    path = next(group.iter(f"{SVG}path")).get("d", "")
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]


def tick_place(plot: Plot, label: str) -> float:
    """Where the mark of the horizontal tick of this label stands."""
    for group in svg(plot).iter(f"{SVG}g"):
        if group.get("id", "").startswith(f"{plot.name}-xtick"):
            marks = [float(use.get("x", "nan")) for use in group.iter(f"{SVG}use")]
            if label in ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]:
                return marks[0]
    raise AssertionError(f"no tick {label}")


def height(corners: Sequence[tuple[float, float]]) -> float:
    return max(y for _, y in corners) - min(y for _, y in corners)


def test_the_forest_has_a_point_and_an_interval_for_each_arm_and_category() -> None:
    plot = speedup_plot(build.report())
    assert len(ids(plot, "point-")) == len(ids(plot, "interval-")) == 3 * (1 + 3)
    assert ids(plot, "one") == ["one"]
    shown = texts(plot)
    for name in ("stock", "null", "replay", "1.35x [1.29, 1.40]", "0.91x [0.86, 0.96]"):
        assert name in shown
    assert shown.count("math") == 3
    assert "ar" not in shown


def test_the_forest_lies_true_to_scale_around_the_line_at_one() -> None:
    plot = speedup_plot(build.report())
    one = points(plot, "one")[0][0]
    (stock, _), (null, _), (replay, _) = (points(plot, f"point-{row}")[0] for row in (0, 4, 8))
    assert null < one < stock < replay
    assert (replay - one) / (stock - one) == pytest.approx(1.4321 / 0.3456, rel=1e-3)
    (low, _), (high, _) = points(plot, "interval-0")
    assert (high - low) / (stock - one) == pytest.approx((1.3987 - 1.2912) / 0.3456, rel=1e-3)


def test_the_bars_are_the_shares_of_the_histogram() -> None:
    plot = accepted_plot(build.report())
    assert ids(plot, "bar-") == [f"bar-{arm}-{count}" for arm in range(3) for count in range(4)]
    stock = [height(points(plot, f"bar-0-{count}")) for count in range(4)]
    assert [bar / sum(stock) for bar in stock] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-4)
    assert height(points(plot, "bar-1-0")) > max(stock)  # null accepts nothing: the whole height
    assert "stock: acceptance length 1.750" in texts(plot)
    assert not any(text.startswith("ar:") for text in texts(plot))


def test_the_lines_are_the_acceptance_by_position() -> None:
    plot = position_plot(build.report())
    assert ids(plot, "line-") == ["line-0", "line-1", "line-2"]
    stock, null, replay = (points(plot, f"line-{place}") for place in range(3))
    assert [len(line) for line in (stock, null, replay)] == [3, 3, 3]
    floor, ceiling = null[0][1], replay[0][1]
    shares = [(floor - y) / (floor - ceiling) for _, y in stock]
    assert shares == pytest.approx([0.5, 0.4, 0.25], abs=1e-4)
    assert [x for x, _ in stock] == pytest.approx([tick_place(plot, name) for name in "123"], abs=0.01)


def test_a_drift_shows_as_a_slope_in_every_launch_of_every_arm() -> None:
    plot = timeline_plot(build.report())
    assert len(ids(plot, "speed-")) == len(ids(plot, "busy-")) == 4 * 3
    for name in ids(plot, "speed-"):
        line = points(plot, name)
        assert len(line) == 4
        assert all(left[0] < right[0] and left[1] < right[1] for left, right in pairwise(line))
    for name in ids(plot, "busy-"):
        assert all(left[1] > right[1] for left, right in pairwise(points(plot, name)))
    starts = [points(plot, f"speed-{arm}-0")[0][1] for arm in range(4)]
    assert starts == pytest.approx([starts[0]] * 4, abs=0.01)  # each against its own median
    assert "ar, 39.1 tokens/s" in texts(plot)  # between the 6th and the 7th of twelve blocks


def test_a_steady_run_is_flat() -> None:
    steady = tuple(msgspec.structs.replace(span, busy_seconds=30.0) for span in pieces.timeline())
    plot = timeline_plot(build.report(timeline=steady))
    assert len({y for name in ids(plot, "speed-") for _, y in points(plot, name)}) == 1


def test_a_short_run_counts_seconds_and_a_long_one_minutes() -> None:
    short = pieces.timeline()[:8]
    assert "seconds since the first request" in texts(timeline_plot(build.report(timeline=short)))
    assert "minutes since the first request" in texts(timeline_plot(build.report()))


@pytest.mark.parametrize(
    ("plot", "reason"),
    [
        (speedup_plot(build.invalid()), "the run is invalid, so no speedup is shown"),
        (timeline_plot(build.invalid()), "the run is invalid, so no speed is shown"),
        (speedup_plot(build.report(arms=(pieces.arm("ar"),))), "no arm was compared with ar"),
        (accepted_plot(build.report(arms=(pieces.arm("ar"),))), "no arm drafted a token"),
        (position_plot(build.report(arms=(pieces.arm("ar"),))), "no arm drafted a token"),
        (accepted_plot(build.report(arms=(pieces.arm("stock", acceptance=None),))), "no arm drafted a token"),
        (timeline_plot(build.report(timeline=())), "one block has no course in time"),
        (timeline_plot(build.report(timeline=pieces.timeline()[:4])), "one block has no course in time"),
    ],
)
def test_a_plot_with_nothing_to_show_is_left_out_with_its_reason(plot: Plot, reason: str) -> None:
    assert plot.svg is None
    assert plot.reason == reason


def test_colours_and_markers_follow_the_arm_through_all_plots() -> None:
    drawn = [
        p for p in plots(build.report(arms=(pieces.arm("ar"), pieces.arm("replay")))) if p.reason is None
    ]
    assert len(drawn) == 4  # a calibration arm is no mechanism: no waterfall, no forest by set
    second = "#0072b2"
    for plot in drawn:
        assert plot.svg is not None
        assert second in plot.svg
        assert "#009e73" not in plot.svg


@pytest.mark.parametrize("make", [build.report, build.hostile])
def test_a_plot_is_a_bare_svg_of_the_page_without_date_size_or_metadata(make: Callable[[], Report]) -> None:
    for plot in plots(make()):
        head = svg(plot)
        assert head.tag == f"{SVG}svg"
        assert head.get("viewBox", "").startswith("0 0 331.2 ")
        assert head.get("width") is head.get("height") is None
        assert (head.get("role"), head.get("aria-label")) == ("img", plot.title)
        assert plot.svg is not None
        assert "metadata" not in plot.svg
        assert "#010203" not in plot.svg
        assert "currentColor" in plot.svg


def test_hostile_names_are_text_and_neither_formula_nor_element() -> None:
    name = '$\\frac{$ <script>"&'
    arms = (pieces.arm("ar"), msgspec.structs.replace(pieces.arm("stock"), name=name))
    spans = tuple(s for s in pieces.timeline() if s.arm == "ar")
    for plot in plots(build.report(arms=arms, timeline=spans))[:5]:
        assert any(text.startswith("$\\frac{$") for text in texts(plot))
        assert plot.svg is not None
        assert "<script" not in plot.svg


def test_drawing_twice_gives_equal_bytes_and_leaves_the_style_of_the_process_alone() -> None:
    with mpl.rc_context({"font.size": 33.0, "axes.linewidth": 9.0}):
        strange = plots(build.report())
        assert mpl.rcParams["font.size"] == 33.0
    assert strange == plots(build.report())


def test_a_wide_range_of_arms_and_drafts_is_drawn_whole() -> None:
    acceptance = pieces.acceptance((5,) * 41, (0.5,) * 40)
    arms = tuple(
        msgspec.structs.replace(pieces.arm("stock"), name=f"candidate-{n}", acceptance=acceptance)
        for n in range(12)
    )
    report = build.report(arms=arms)
    assert len(ids(speedup_plot(report), "point-")) == 12 * 4
    assert len(ids(accepted_plot(report), "bar-")) == 12 * 41
    assert len(ids(position_plot(report), "line-")) == 12
