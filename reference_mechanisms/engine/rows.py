"""The layout of one target forward: rows of all requests packed one after another.

A row is one token at one position of one request. Rows of a request are consecutive, and each sees
the cached positions of its own request up to and including itself: a chain. With parents the rows of
a segment are a tree: each sees what is committed, its own ancestors, and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """Consecutive rows of one request."""

    slot: int  # of the cache
    start: int  # cache index of the first row; the others follow it
    rows: int


class Rows(NamedTuple):
    """Everything a target needs to know to run one forward."""

    token_ids: Sequence[int]
    positions: Sequence[int]  # rotary position of each row
    segments: Sequence[Segment]  # in row order, covering all rows
    # Parent of each row, counted inside its segment, -1 for what is committed; None: chains.
    parents: Sequence[int] | None = None
