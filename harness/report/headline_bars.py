"""The picture of several headlines from the same data: a bar each, from 1 to the speedup it tells."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from harness.report.svg import COLOURS, INK, draw
from harness.report.text import shorten

LABEL = 26  # characters of a name


def headline_bars(title: str, headlines: Sequence[tuple[str, float]]) -> str:
    """An SVG document; the first headline is the one that holds, and has a colour of its own.

    Args:
        title: what the picture shows, for screen readers.
        headlines: name and speedup.
    """

    def paint(axes: Sequence[Axes]) -> None:
        (own,) = axes
        for row, (_, speedup) in enumerate(headlines):
            shade = COLOURS[2] if row else COLOURS[3]
            own.barh(row, speedup - 1.0, left=1.0, height=0.55, color=shade, gid=f"bar-{row}")
            own.text(
                1.03,
                row,
                f"{speedup:.2f}x",
                transform=own.get_yaxis_transform(),
                verticalalignment="center",
                fontsize=9.5,
            )
        own.axvline(1.0, color=INK, linewidth=1.0, gid="one")
        own.set_yticks(range(len(headlines)), [shorten(name, LABEL) for name, _ in headlines])
        own.set_ylim(len(headlines) - 0.4, -0.6)
        own.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        own.grid(visible=False, axis="y")
        own.tick_params(axis="y", length=0)
        own.set_xlabel("speedup that is told")

    return draw("headlines", title, 0.75 + 0.32 * len(headlines), 1, paint)
