"""The four pictures of a report. One with nothing to show is left out and says why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator, PercentFormatter

from harness.report import numbers, tables
from harness.report.svg import INK, colour, draw, marker
from harness.report.text import shorten
from harness.results import Acceptance, ArmResult, BlockSpan, Interval, Report

LABEL = 17  # characters of a name inside a picture; the tables have it whole


class Plot(NamedTuple):
    """One picture, or the reason why there is none."""

    name: str
    title: str
    caption: str
    svg: str | None
    reason: str | None  # set exactly when `svg` is None


def plots(report: Report) -> tuple[Plot, ...]:
    """Speedups, acceptance lengths, acceptance by position, time-line."""
    return (
        speedup_plot(report),
        accepted_plot(report),
        position_plot(report),
        timeline_plot(report),
    )


class _Line(NamedTuple):
    """A line of the forest plot."""

    label: str
    interval: Interval
    arm: int
    whole: bool  # the arm as a whole, not one of its categories


def speedup_plot(report: Report) -> Plot:
    """Speedup over `ar` with its interval, of each arm and of each of its categories."""
    name = tables.baseline(report)
    title = f"Speedup over {name}"
    lines = list(_forest_lines(report))
    if not tables.valid(report):
        return _left_out("speedup", title, "the run is invalid, so no speedup is shown")
    if not lines:
        return _left_out("speedup", title, f"no arm was compared with {name}")
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


def _paint_forest(axes: Axes, lines: Sequence[_Line], title: str) -> None:
    axes.axvline(1.0, color=INK, linewidth=1.0, gid="one")
    for row, line in enumerate(lines):
        found, size = line.interval, 7 if line.whole else 4.5
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
    shown = [line.interval for line in lines if numbers.informative(line.interval)]
    edges = [1.0, *(line.interval.point for line in lines)]
    edges += [edge for found in shown for edge in (found.low, found.high)]
    room = 0.06 * (max(edges) - min(edges)) or 0.1
    axes.set_xlim(min(edges) - room, max(edges) + room)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(title)


def accepted_plot(report: Report) -> Plot:
    """Share of verify steps by the number of draft tokens they accepted, for each arm that drafts."""
    title = "Draft tokens accepted in a verify step"
    found = _drafting(report)
    if not found:
        return _left_out("accepted", title, "no arm drafted a token")
    most = max(len(acceptance.histogram) for _, _, acceptance in found)
    return Plot(
        "accepted",
        title,
        "Share of an arm's verify steps by how many draft tokens they accepted; each arm has its own "
        "scale. A step emits one token more than it accepts, unless a stop cuts it.",
        draw(
            "accepted",
            title,
            0.55 + 1.05 * len(found),
            len(found),
            lambda axes: _paint_accepted(axes, found, most),
        ),
        None,
    )


def _paint_accepted(axes: Sequence[Axes], found: Sequence[_Drafted], most: int) -> None:
    for place, (own, (index, arm, acceptance)) in enumerate(zip(axes, found, strict=True)):
        steps = sum(acceptance.histogram)
        for count, number in enumerate(acceptance.histogram):
            own.bar(count, number / steps, width=0.8, color=colour(index), gid=f"bar-{place}-{count}")
        own.set_title(
            f"{shorten(arm.name, 2 * LABEL)}: acceptance length {numbers.length(acceptance.length)}",
            loc="left",
        )
        own.set_xlim(-0.6, most - 0.4)
        own.set_ylim(0.0, min(1.0, 1.15 * max(acceptance.histogram) / steps))
        own.yaxis.set_major_formatter(PercentFormatter(1.0))
        own.yaxis.set_major_locator(MaxNLocator(2))
        own.xaxis.set_major_locator(_whole_numbers(most))
        own.grid(visible=False, axis="x")
        own.tick_params(labelbottom=own is axes[-1])
    axes[-1].set_xlabel("accepted draft tokens")


def position_plot(report: Report) -> Plot:
    """Acceptance of the first, second, ... draft token, for each arm that drafts."""
    title = "Acceptance by draft position"
    found = [item for item in _drafting(report) if item.acceptance.per_position]
    if not found:
        return _left_out("position", title, "no arm drafted a token")
    names = [shorten(item.arm.name, LABEL) for item in found]
    return Plot(
        "position",
        title,
        "Of the verify steps that drafted at least this many tokens, the share that accepted the token at "
        "this position.",
        draw("position", title, 2.4 + _legend_height(names), 1, lambda axes: _paint_position(axes[0], found)),
        None,
    )


def _paint_position(axes: Axes, found: Sequence[_Drafted]) -> None:
    for place, (index, _, acceptance) in enumerate(found):
        shares = acceptance.per_position
        axes.plot(
            range(1, len(shares) + 1),
            shares,
            f"{marker(index)}-",
            color=colour(index),
            clip_on=False,
            gid=f"line-{place}",
        )
    most = max(len(acceptance.per_position) for _, _, acceptance in found)
    axes.set_xlim(0.7, most + 0.3)
    axes.set_ylim(0.0, 1.0)
    axes.xaxis.set_major_locator(_whole_numbers(most))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("position of the draft token")
    _legend(axes, [(item.order, shorten(item.arm.name, LABEL)) for item in found])


class _Course(NamedTuple):
    """One arm over time."""

    order: int
    label: str
    spans: tuple[BlockSpan, ...]  # by time
    median: float  # tokens/s


def timeline_plot(report: Report) -> Plot:
    """When each arm ran in each block, how busy it was, and its speed against its own median."""
    title = "Blocks over time"
    if not tables.valid(report):
        return _left_out("timeline", title, "the run is invalid, so no speed is shown")
    courses = list(_courses(report))
    if len({(span.launch, span.block) for course in courses for span in course.spans}) < 2:
        return _left_out("timeline", title, "one block has no course in time")
    height = 4.0 + _legend_height([course.label for course in courses])
    return Plot(
        "timeline",
        title,
        "Each mark is an arm in a block, placed at its first request; lines join the blocks of one launch. "
        "Above: tokens/s against the arm's own median (in the legend), so that a drift of the machine shows "
        "as a slope of all arms. Below: summed response time.",
        draw("timeline", title, height, 2, lambda axes: _paint_timeline(axes, courses)),
        None,
    )


def _courses(report: Report) -> Iterator[_Course]:
    for order, arm in enumerate(report.arms):
        own = [s for s in report.timeline if s.arm == arm.name and s.busy_seconds > 0.0 and s.tokens]
        if own:
            median = statistics.median(span.tokens / span.busy_seconds for span in own)
            label = f"{shorten(arm.name, LABEL)}, {numbers.rate(median)} tokens/s"
            yield _Course(order, label, tuple(sorted(own, key=lambda span: span.started_at)), median)


def _paint_timeline(axes: Sequence[Axes], courses: Sequence[_Course]) -> None:
    starts = [span.started_at for course in courses for span in course.spans]
    unit, seconds = ("minutes", 60.0) if max(starts) - min(starts) > 180.0 else ("seconds", 1.0)
    speed, busy = axes
    speed.axhline(1.0, color=INK, linewidth=0.8)
    for order, _, spans, median in courses:
        line, shade = f"{marker(order)}-", colour(order)
        for launch in sorted({span.launch for span in spans}):
            mine = [span for span in spans if span.launch == launch]
            at = [(span.started_at - min(starts)) / seconds for span in mine]
            relative = [span.tokens / span.busy_seconds / median for span in mine]
            taken = [span.busy_seconds for span in mine]
            speed.plot(at, relative, line, color=shade, linewidth=1.0, gid=f"speed-{order}-{launch}")
            busy.plot(at, taken, line, color=shade, linewidth=1.0, gid=f"busy-{order}-{launch}")
    speed.yaxis.set_major_formatter(PercentFormatter(1.0))
    speed.yaxis.set_major_locator(MaxNLocator(5))
    speed.set_title("tokens/s, of the arm's median", loc="left")
    speed.tick_params(labelbottom=False)
    busy.set_title("busy seconds", loc="left")
    busy.set_ylim(0.0, 1.1 * max(span.busy_seconds for course in courses for span in course.spans))
    busy.yaxis.set_major_locator(MaxNLocator(4))
    busy.set_xlabel(f"{unit} since the first request")
    busy.sharex(speed)
    _legend(speed, [(course.order, course.label) for course in courses])


class _Drafted(NamedTuple):
    """An arm that drafts, with its place in the report."""

    order: int
    arm: ArmResult
    acceptance: Acceptance


def _drafting(report: Report) -> list[_Drafted]:
    return [
        _Drafted(index, arm, arm.acceptance)
        for index, arm in enumerate(report.arms)
        if arm.acceptance is not None and arm.acceptance.num_draft_tokens and sum(arm.acceptance.histogram)
    ]


def _whole_numbers(count: int) -> Locator:
    """Each of so many neighbours has its tick while there is room."""
    return MultipleLocator(1) if count <= 12 else MaxNLocator(8, integer=True)


def _legend_columns(labels: Sequence[str]) -> int:
    return 2 if len(labels) > 1 and max(map(len, labels)) <= 24 else 1


def _legend_height(labels: Sequence[str]) -> float:
    """Inches."""
    return 0.2 * math.ceil(len(labels) / _legend_columns(labels))


def _legend(axes: Axes, entries: Sequence[tuple[int, str]]) -> None:
    """Above the axes, outside of the data."""
    labels = [label for _, label in entries]
    axes.figure.legend(
        [Line2D([], [], color=colour(index), marker=marker(index)) for index, _ in entries],
        labels,
        loc="outside upper left",
        ncols=_legend_columns(labels),
        handlelength=1.6,
        columnspacing=1.2,
    )


def _left_out(name: str, title: str, reason: str) -> Plot:
    return Plot(name, title, "", None, reason)
