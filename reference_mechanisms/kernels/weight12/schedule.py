"""How a product is divided: over clusters by (N, K) alone, into shared memory by the tokens.

The sum of an output element is cut at fixed columns: `cluster` CTAs times four warps, each in column
order. Tokens change neither the cuts nor the instruction, so a token's result is the same alone and
among 63 others.
"""

from __future__ import annotations

from dataclasses import dataclass

STRIP = 32  # rows that a warp takes at once
TILE = 64  # columns of a unit
WARPS = 8
ADDERS = 2  # warps that add what the others leave
WARPS_K = 4  # warps that share the columns of a strip
GROUP_ROWS = STRIP * WARPS // WARPS_K  # rows of a pass of one cluster
UNIT_BYTES = {False: 3104, True: 4096}  # of packed and of raw weights

BLOCKS = (1, 2, 4)  # blocks of 8 tokens that a kernel is compiled for
MAX_TOKENS = 64
X_TILES = 24  # of a CTA, if a cluster of eight can have so few
CLUSTERS = (1, 2, 4, 8)
NOMINAL_CTAS = 128  # the clusters of an H100 or H200 hold no more
FULL_BYTES = 227 * 1024  # shared memory of one CTA on sm_90
SHARED_BYTES = 113 * 1024  # and of two CTAs on one multiprocessor
MAX_SLOTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What (N, K) decide.

    Attributes:
        rows: N padded to whole passes.
        tiles: units of a strip.
        cluster: CTAs that share the columns.
    """

    rows: int
    tiles: int
    cluster: int

    @property
    def groups(self) -> int:
        """Passes of all clusters together."""
        return self.rows // GROUP_ROWS

    @property
    def x_tiles(self) -> int:
        """Most units of x that a CTA holds."""
        return -(-self.tiles // self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled kernel, and its shared memory.

    Attributes:
        blocks: of 8 tokens.
        raw: whether it reads bf16.
        slots: of each warp's ring.
        ctas: that fit on one multiprocessor.
        shared_bytes: of a CTA.
    """

    blocks: int
    raw: bool
    slots: int
    ctas: int
    shared_bytes: int


def split(rows: int, columns: int) -> Split:
    """The split of a matrix [rows, columns]."""
    tiles = -(-columns // TILE)
    groups = -(-rows // GROUP_ROWS)
    fitting = [size for size in CLUSTERS if tiles <= X_TILES * size] or [CLUSTERS[-1]]

    def cost(size: int) -> float:
        clusters = NOMINAL_CTAS // size
        even = groups / clusters
        return size / 400 + -(-groups // clusters) / even  # a smaller cluster, unless CTAs would idle

    return Split(rows=groups * GROUP_ROWS, tiles=tiles, cluster=min(fitting, key=cost))


def variant(found: Split, tokens: int, *, raw: bool) -> Variant:
    """The kernel for so many tokens; it takes fewer at once if their x does not fit.

    Raises:
        ValueError: not even 8 tokens of so many columns fit.
    """
    wanted = next((b for b in BLOCKS if tokens <= 8 * b), BLOCKS[-1])
    for blocks in reversed([b for b in BLOCKS if b <= wanted]):
        for limit, ctas in ((SHARED_BYTES, 2), (FULL_BYTES, 1)):
            for slots in range(MAX_SLOTS, 1, -1):
                needed = shared_bytes(found, blocks, slots, raw=raw)
                if needed <= limit:
                    return Variant(blocks=blocks, raw=raw, slots=slots, ctas=ctas, shared_bytes=needed)
    raise ValueError(f"{found.tiles * TILE} columns are too many for shared memory")


def shared_bytes(found: Split, blocks: int, slots: int, *, raw: bool) -> int:
    """Shared memory of a CTA: ring, partial sums, inbox, palettes, barriers, x."""
    ring = WARPS * slots * UNIT_BYTES[raw]
    pieces = 2 * (WARPS // WARPS_K) * blocks * 32 * 16
    return (
        ring + WARPS_K * pieces + 2 * pieces + 2048 + WARPS * slots * 8 + 64 + found.x_tiles * blocks * 1024
    )
