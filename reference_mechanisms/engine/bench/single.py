"""An engine of single requests, in steps of a fixed number of rows, whose tokens say nothing."""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.target import Target
from reference_mechanisms.kernels.step.twin import WAYS, Ways


def single_engine(
    target: Target, positions: int, rows: int, graphs: Graphs, ways: Ways = WAYS
) -> tuple[Lanes, Decoder]:
    """Lanes and the decoder on them.

    Args:
        target: the model.
        positions: of the longest request.
        rows: of every step.
        graphs: record the steps.
        ways: of the kernels.

    Raises:
        TargetError: steps of fixed shape cannot run the target, or do not fit the device.
    """
    lanes = Lanes(target, positions, Static(rows, graphs, ways=ways))
    return lanes, Decoder(target, (), no_text, positions, lanes=lanes)


def no_text(ids: Sequence[int]) -> str:
    """Tokens of dummy weights say nothing."""
    del ids
    return ""
