"""What every picture of a report is: an SVG with its words, or the reason why there is none."""

from __future__ import annotations

from typing import NamedTuple

LABEL = 17  # characters of a name inside a picture; the tables have it whole


class Plot(NamedTuple):
    """One picture, or the reason why there is none."""

    name: str
    title: str
    caption: str
    svg: str | None
    reason: str | None  # set exactly when `svg` is None


def left_out(name: str, title: str, reason: str) -> Plot:
    """A picture that is not drawn, and why."""
    return Plot(name, title, "", None, reason)
