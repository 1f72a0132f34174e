"""The waterfall: from autoregressive decoding to stock speculation, and from there to each mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from harness.report import numbers, tables
from harness.report.picture import LABEL, Plot, left_out
from harness.report.svg import FAINT, INK, colour, draw
from harness.report.text import shorten
from harness.results import ArmResult, Interval, Report
from harness.speculation import mechanism


class _Bar(NamedTuple):
    """A step of the waterfall, in speedup over the baseline."""

    name: str
    what: str  # its mechanism
    start: float
    interval: Interval
    order: int  # of the arm in the report
    note: str  # what it gains over stock, or that its tokens are not stock's
    violated: bool


def waterfall_plot(report: Report) -> Plot:
    """Speedup over the baseline: of stock from 1, of every other mechanism from where stock ends."""
    name = tables.baseline(report)
    title = f"From {name} to each mechanism"
    if not tables.valid(report):
        return left_out("waterfall", title, "the run is invalid, so no speedup is shown")
    bars = list(_bars(report))
    if len(bars) < 2:
        return left_out("waterfall", title, f"no mechanism was compared with {name}")
    return Plot(
        "waterfall",
        title,
        f"Each bar leads from what it is built on to its own speedup over {name}: stock from {name}, every "
        "other mechanism from stock (dotted line). Mechanisms do not add up: each is an arm of its own. The "
        "thin line is the interval; the ratio to stock is that of the two points. A hatched arm's tokens are "
        "not stock's own, so that it shows no lossless speedup.",
        draw("waterfall", title, 0.75 + 0.46 * len(bars), 1, lambda axes: _paint(axes[0], bars, name)),
        None,
    )


def _bars(report: Report) -> Iterator[_Bar]:
    base = report.job.plan.baseline.name
    arms = {arm.name: (order, arm) for order, arm in enumerate(report.arms) if arm.speedup is not None}
    level = 1.0
    if base in arms:
        yield _bar(report, *arms[base], start=0.0, note="")
    stock = next((a for _, a in arms.values() if a.kind == "stock" and a.name != base), None)
    if stock is not None and stock.speedup is not None:
        yield _bar(report, *arms[stock.name], start=level, note="")
        level = stock.speedup.point
    for order, arm in arms.values():
        if tables.is_mechanism(report, arm) and arm is not stock and arm.speedup is not None:
            over = "" if stock is None else f"{arm.speedup.point / level:.2f}x over stock"
            yield _bar(report, order, arm, start=level, note=over)


def _bar(report: Report, order: int, arm: ArmResult, *, start: float, note: str) -> _Bar:
    violated = arm.losslessness is not None and arm.losslessness.stock_verdict == "violated"
    assert arm.speedup is not None  # noqa: S101
    return _Bar(
        shorten(arm.name, LABEL),
        shorten(mechanism(report, arm.name), LABEL + 5),
        start,
        arm.speedup,
        order,
        "tokens violated" if violated else note,
        violated,
    )


def _paint(axes: Axes, bars: Sequence[_Bar], name: str) -> None:
    for row, bar in enumerate(bars):
        end, shade = bar.interval.point, colour(bar.order)
        axes.barh(
            row,
            end - bar.start,
            left=bar.start,
            height=0.55,
            color="none" if bar.violated else shade,
            edgecolor=shade,
            hatch="///" if bar.violated else None,
            gid=f"bar-{row}",
        )
        if bar.interval.low < bar.interval.high and numbers.informative(bar.interval):
            axes.plot([bar.interval.low, bar.interval.high], [row, row], color=INK, linewidth=0.9)
        if row + 1 < len(bars):
            reach = bars[row + 1].start
            if reach > 0.0:
                axes.plot([reach, reach], [row, row + 1], color=FAINT, linewidth=0.9, linestyle="dotted")
        words = numbers.ratio(bar.interval)
        axes.text(
            1.03,
            row,
            f"{words}\n{bar.note}" if bar.note else words,
            transform=axes.get_yaxis_transform(),
            verticalalignment="center",
            fontsize=9.5,
        )
    axes.set_yticks(range(len(bars)), [f"{bar.name}\n{bar.what}" for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    ends = [edge for bar in bars for edge in (bar.interval.point, *_shown(bar.interval))]
    axes.set_xlim(0.0, 1.06 * max(ends))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"speedup over {name}")


def _shown(found: Interval) -> tuple[float, ...]:
    return (found.high,) if numbers.informative(found) else ()
