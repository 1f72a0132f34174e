"""Which prompts go on in the next step, and by how many rows.

Source: chunked prefill (Sarathi-Serve, arXiv 2403.02310). Prompts are taken in the order in which their
requests came. Prefill is a forward of its own, told by what it is and never by its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Rows of one prompt."""

    slot: int
    rows: int


def pieces(left: Sequence[tuple[int, int]], rows: int | None, *, decoding: bool) -> tuple[Piece, ...]:
    """The pieces of a step.

    Args:
        left: slot and prompt rows that are not cached yet, in the order of arrival.
        rows: most rows of a step while others decode; None: whole prompts, whoever waits.
        decoding: whether others do. If not nobody waits, and the first prompt is done whole.
    """
    if not left:
        return ()
    if rows is None:
        return tuple(Piece(slot, missing) for slot, missing in left)
    if not decoding:
        return (Piece(*left[0]),)
    found, room = [], rows
    for slot, missing in left:
        taken = min(missing, room)
        if not taken:
            break
        found.append(Piece(slot, taken))
        room -= taken
    return tuple(found)
