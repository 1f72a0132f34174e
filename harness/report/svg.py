"""Drawing without global state: a figure of the house's style, and its bytes as inline SVG.

Every figure is drawn for a narrow screen and scaled up on a wide one. Text stays text, in the
page's own colour, so that it is readable in light, dark and print. Equal figures give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH = 4.6  # inches: 331 units; on a phone of 390 px a unit is about a pixel
INK = "#010203"  # stands for the page's text colour until the SVG is written
FAINT = "#8a8a8a"  # readable on white and on near-black

# Told apart by every common kind of colour vision, at least 3:1 on white and on near-black. Arms also
# differ in marker, so that a grey print reads the same.
COLOURS = ("#777777", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a67c00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE = {
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def colour(arm: int) -> str:
    """Colour of the arm of this index in the plan."""
    return COLOURS[arm % len(COLOURS)]


def marker(arm: int) -> str:
    """Marker of the arm of this index in the plan; with the colour it repeats after 24 arms."""
    return MARKERS[arm % len(MARKERS)]


def draw(name: str, label: str, height: float, rows: int, paint: Callable[[Sequence[Axes]], None]) -> str:
    """Paint a figure of stacked axes and give it as one `<svg>` element.

    Args:
        name: of the plot; prefixes every id, so that several SVGs can stand in one page.
        label: what the picture shows, for screen readers.
        height: inches; the width is always `WIDTH`.
        rows: axes, one below the other.
        paint: draws on them. Artists with a gid keep it, prefixed by `name`.
    """
    with matplotlib.style.context("default"), mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height))
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
        paint(list(axes))
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    return _inline(file.getvalue(), name, label)


def _inline(document: str, name: str, label: str) -> str:
    """Cut the XML head, make the size that of the page, ids unique, and ink the page's colour."""
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r"<[^>]*>", lambda tag: _own_ids(tag[0], name), svg).replace(INK, "currentColor")
    head = svg[: svg.index(">")]
    sized = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f'{sized} role="img" aria-label="{_attribute(label)}"{svg[len(head) :]}'


def _own_ids(tag: str, name: str) -> str:
    """Only inside a tag: text of others is never rewritten."""
    return re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", tag)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
