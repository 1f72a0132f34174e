"""What it costs in memory to be able to take back draft tokens of recurrent layers, in bytes a request.

Two ways: a copy of the state behind every row, of which a commit picks one; or a stash of what every row
writes, from which a commit replays the accepted rows. `gated_delta` does the latter.
"""

from __future__ import annotations

from typing import NamedTuple

from reference_mechanisms.targets.gated_delta import STATE_TYPE, DeltaSizes, Stash


class NumberBytes(NamedTuple):
    """Bytes of one number of each part of a stash."""

    key: int
    value: int
    raw: int


class VerifyMemory(NamedTuple):
    """Bytes for all rows of one verify step."""

    snapshots: int  # a copy of the memory matrices behind each row
    writes: int  # keys, values, write strengths and decays of each row
    raw: int  # inputs of the convolution of each row: needed next to either, for its window

    @property
    def ratio(self) -> float:
        """Snapshots over writes."""
        return self.snapshots / self.writes


def verify_memory(sizes: DeltaSizes, layers: int, rows: int, number: NumberBytes) -> VerifyMemory:
    """Both ways for one request.

    Args:
        sizes: of a recurrent layer.
        layers: recurrent ones.
        rows: verified, the anchor among them.
        number: bytes of the stash's numbers; states, write strengths and decays are float32.
    """
    times = layers * rows
    write = sizes.keys * number.key + sizes.values * number.value
    return VerifyMemory(
        snapshots=times * sizes.values * sizes.key_dim * STATE_TYPE.itemsize,
        writes=times * (write + 2 * sizes.value_heads * STATE_TYPE.itemsize),
        raw=times * sizes.channels * number.raw,
    )


def stash_bytes(stash: Stash) -> tuple[int, int]:
    """Bytes of the writes and of the raw inputs that a stash of one layer really holds."""
    return sum(part.nbytes for part in stash.writes), stash.raw.nbytes
