"""The picture of a training run: loss and acceptance length over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from harness.report.svg import colour, draw

HEIGHT = 3.4  # inches


def training_curves(
    name: str, steps: Sequence[int], losses: Sequence[float], lengths: Sequence[float]
) -> str:
    """An SVG document with two axes, one below the other.

    Args:
        name: of the drafter.
        steps: at which the points stand.
        losses: nats a draft, one a point; the first may be far above the rest and is cut off then.
        lengths: acceptance length expected on training texts, tokens a verify step, one a point.
    """

    def paint(axes: Sequence[Axes]) -> None:
        loss, length = axes
        loss.plot(steps, losses, color=colour(1), gid="loss")
        loss.set_title("loss", loc="left")
        loss.tick_params(labelbottom=False)
        if len(losses) > 2:
            loss.set_ylim(0.0, 1.1 * max(losses[1:]))
        length.plot(steps, lengths, color=colour(2), gid="length")
        length.set_title("acceptance length on training texts", loc="left")
        length.set_xlabel("steps")
        length.sharex(loss)
        for own in axes:
            own.yaxis.set_major_locator(MaxNLocator(5))

    label = f"{name}: loss and acceptance length over the steps of training"
    return draw("training", label, HEIGHT, 2, paint).replace("currentColor", "#777777") + "\n"
