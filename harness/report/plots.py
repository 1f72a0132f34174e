"""The pictures of a report; here those of acceptance and of time. One with nothing to show says why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator, PercentFormatter

from harness.report import numbers, tables
from harness.report.forest import set_plot, speedup_plot
from harness.report.picture import LABEL, Plot, left_out
from harness.report.svg import INK, colour, draw, marker
from harness.report.text import shorten
from harness.report.waterfall import waterfall_plot
from harness.results import Acceptance, ArmResult, BlockSpan, Report


def plots(report: Report) -> tuple[Plot, ...]:
    """Waterfall, speedups by set and by category, acceptance lengths, acceptance by position, time-line."""
    return (
        waterfall_plot(report),
        set_plot(report),
        speedup_plot(report),
        accepted_plot(report),
        position_plot(report),
        timeline_plot(report),
    )


def accepted_plot(report: Report) -> Plot:
    """Share of verify steps by the number of draft tokens they accepted, for each arm that drafts."""
    title = "Draft tokens accepted in a verify step"
    found = _drafting(report)
    if not found:
        return left_out("accepted", title, "no arm drafted a token")
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
        return left_out("position", title, "no arm drafted a token")
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
        return left_out("timeline", title, "the run is invalid, so no speed is shown")
    courses = list(_courses(report))
    if len({(span.launch, span.block) for course in courses for span in course.spans}) < 2:
        return left_out("timeline", title, "one block has no course in time")
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
