"""Forest plots: each speedup with its interval, by arm and category, and by evaluation set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from harness.report import numbers, tables
from harness.report.picture import LABEL, Plot, left_out
from harness.report.svg import INK, colour, draw, marker
from harness.report.text import shorten
from harness.results import Interval, Report


class _Line(NamedTuple):
    """A line of the forest plot."""

    label: str
    interval: Interval | None  # None: a heading
    arm: int
    whole: bool  # the arm as a whole, not one of its categories or sets


def speedup_plot(report: Report) -> Plot:
    """Speedup over `ar` with its interval, of each arm and of each of its categories."""
    name = tables.baseline(report)
    title = f"Speedup over {name}"
    lines = list(_forest_lines(report))
    if not tables.valid(report):
        return left_out("speedup", title, "the run is invalid, so no speedup is shown")
    if not lines:
        return left_out("speedup", title, f"no arm was compared with {name}")
    height = 0.75 + 0.24 * len(lines)
    confidence = numbers.percent(report.job.plan.stats.confidence)
    return Plot(
        "speedup",
        title,
        f"Point and {confidence} interval of the total-time ratio: the arm as a whole (bold), then its "
        f"categories. Right of the line at 1 is faster than {name}. A point alone has too little data "
        "for an interval.",
        draw("speedup", title, height, 1, lambda axes: _paint_forest(axes[0], lines, title)),
        None,
    )


def _forest_lines(report: Report) -> Iterator[_Line]:
    for index, arm in enumerate(report.arms):
        if arm.name == report.job.plan.baseline.name:
            continue
        if arm.speedup is not None:
            yield _Line(shorten(arm.name, LABEL), arm.speedup, index, whole=True)
        for item in arm.by_category:
            yield _Line(shorten(item.category, LABEL), item.speedup, index, whole=False)


def set_plot(report: Report) -> Plot:
    """Speedup over `ar` of each mechanism on each evaluation set, side by side, and on all of them."""
    name = tables.baseline(report)
    title = f"Speedup over {name} on each set"
    if not tables.valid(report):
        return left_out("sets", title, "the run is invalid, so no speedup is shown")
    if len(report.sets) < 2:
        return left_out("sets", title, "the run drew one set")
    if all(arm.speedup_by_set is None for arm in report.arms):
        return left_out("sets", title, "the report was written before speedups were told by set")
    lines = list(_set_lines(report))
    if not lines:
        return left_out("sets", title, f"no mechanism was compared with {name}")
    return Plot(
        "sets",
        title,
        "Point and interval of the total-time ratio of each mechanism on the prompts of one set; the "
        "intervals of one arm hold together over its sets. Calibration arms are left out.",
        draw("sets", title, 0.75 + 0.24 * len(lines), 1, lambda axes: _paint_forest(axes[0], lines, title)),
        None,
    )


def _set_lines(report: Report) -> Iterator[_Line]:
    arms = [(n, arm) for n, arm in enumerate(report.arms) if tables.is_mechanism(report, arm)]
    for drawn in report.sets:
        found = [
            _Line(shorten(arm.name, LABEL), item.speedup, index, whole=False)
            for index, arm in arms
            for item in arm.speedup_by_set or ()
            if item.set_name == drawn.name
        ]
        if found:
            yield _Line(shorten(drawn.name, LABEL), None, 0, whole=True)
            yield from found
    whole = [(index, arm.name, arm.speedup) for index, arm in arms if arm.speedup is not None]
    if whole:
        yield _Line("all sets", None, 0, whole=True)
        for index, name, speedup in whole:
            yield _Line(shorten(name, LABEL), speedup, index, whole=True)


def _paint_forest(axes: Axes, lines: Sequence[_Line], title: str) -> None:
    axes.axvline(1.0, color=INK, linewidth=1.0, gid="one")
    for row, line in enumerate(lines):
        found, size = line.interval, 7 if line.whole else 4.5
        if found is None:
            continue
        shade = colour(line.arm)
        width = 2.4 if line.whole else 1.3
        if numbers.informative(found):
            axes.plot(
                [found.low, found.high], [row, row], color=shade, linewidth=width, gid=f"interval-{row}"
            )
        axes.plot([found.point], [row], marker(line.arm), color=shade, markersize=size, gid=f"point-{row}")
        axes.text(
            1.03,
            row,
            numbers.ratio(found) if numbers.informative(found) else f"{found.point:.2f}x",
            transform=axes.get_yaxis_transform(),
            verticalalignment="center",
            fontsize=9.5,
            fontweight="bold" if line.whole else "normal",
        )
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if line.whole else "normal")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    drawn = [line.interval for line in lines if line.interval is not None]
    edges = [1.0, *(found.point for found in drawn)]
    edges += [edge for found in drawn if numbers.informative(found) for edge in (found.low, found.high)]
    room = 0.06 * (max(edges) - min(edges)) or 0.1
    axes.set_xlim(min(edges) - room, max(edges) + room)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(title)
