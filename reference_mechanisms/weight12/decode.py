"""The arrays of the format back to bf16 patterns: one table look-up a byte of `code`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reference_mechanisms.weight12.layout import (
    GROUP,
    HALF,
    RAW_ROW,
    Bits,
    Bytes,
    Packed,
    groups,
    rows_columns,
)

BLOCK = 1 << 16  # weights handled at once


def decode(packed: Packed) -> Bits:
    """The patterns of a packed tensor, in its shape."""
    rows, columns = rows_columns(packed.shape)
    out = np.empty((rows, columns), np.uint16)
    for start, block in decode_blocks(packed):
        out[start : start + len(block)] = block
    return out.reshape(packed.shape)


def decode_blocks(packed: Packed) -> Iterator[tuple[int, Bits]]:
    """First row and patterns [n, K] of block after block: the memory of one."""
    rows, columns = rows_columns(packed.shape)
    q = groups(columns)
    if not rows or not columns:
        return
    pairs = pair_table(packed.ptab)
    step = max(1, BLOCK // (GROUP * q))
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        n = stop - start
        first = np.minimum(packed.pidx[start:stop], len(packed.ptab)).astype(np.intp) << 8
        high = pairs.take(first[..., None] + packed.code[start:stop].reshape(n, q, HALF))
        low = packed.lo[start:stop].reshape(n, q, 2, HALF)
        block = np.empty((n, q, 2, HALF), np.uint16)
        np.left_shift(high, 8, out=block[:, :, 0])
        np.bitwise_and(high, 0xFF00, out=block[:, :, 1])
        block |= low
        weights = block.reshape(n, GROUP * q)[:, :columns]
        if (packed.pidx[start:stop, 0] == RAW_ROW).any():
            at = np.searchsorted(packed.rawrow, (start, stop))
            weights[packed.rawrow[at[0] : at[1]] - np.uint32(start)] = packed.rawval[at[0] : at[1]]
        yield start, weights


def pair_table(ptab: Bytes) -> Bits:
    """High bytes of a byte of `code` under each palette [P + 1, 256], flat.

    Low byte of an entry: of the column in the first half of the group; high byte: in the second.
    The last palette is that of raw rows, and gives 0.
    """
    nibble = np.arange(16)
    high = (nibble & 8) << 4 | ptab[:, nibble & 7]  # [P, 16]
    pairs = high[:, None, :] | high[:, :, None] << 8  # [P, second, first]
    padded = np.zeros((len(ptab) + 1, 256), np.uint16)
    padded[:-1] = pairs.reshape(len(ptab), 256)
    return padded.reshape(-1)
