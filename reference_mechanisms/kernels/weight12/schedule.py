"""How a product is divided: over CTAs and warps by (N, K) alone, into shared memory by tokens and device.

The sum of an output element is cut at fixed columns: `cluster` CTAs times `warps_k` warps, each in column
order. Neither tokens nor device change the cuts or the instruction, so a token's result is the same alone
and among 63 others.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

STRIP = 32  # rows that a warp takes at once
PANEL = 64  # rows that four warps multiply together
TILE = 64  # columns of a unit
PASS_ROWS = 256  # of a CTA whose warps do not share columns
SLOT_BYTES = {False: 1536 + 128, True: 2048}  # of 16 rows of a unit in a ring: packed with numbers, raw
EIGHT_SLOT_BYTES = 1024  # of weights in eight bits
STEP_PIECES = 16  # of the warps of a CTA together: a step takes a piece of each half
MAX_PIECES = {8: 8, 16: 4}  # in a warp's ring, by warps of a CTA
# Bytes of the rings of a CTA, by its shared memory: less does not keep memory busy. A GPU with little of it
# has less bandwidth a multiprocessor, too.
LARGE_ROOM = 128 << 10
MIN_RING = {True: 32 << 10, False: 16 << 10}
GOOD_RING = {True: 48 << 10, False: 24 << 10}

BLOCKS = (1, 2, 4, 8)  # blocks of 8 tokens that a kernel is compiled for
MAX_TOKENS = 64
WARPS = {1: (16, 8), 2: (16, 8), 4: (8,), 8: (8,)}  # of a CTA, by blocks, first choice first
OTHER_WARPS = {1: (8, 16), 2: (8, 16), 4: (16, 8), 8: (8,)}
WGMMA_WARPS = (16,)
MAX_BATCH = 4  # passes of one block of tokens whose sums are exchanged at once
X_TILES = 32  # of a CTA, if a cluster of eight can have so few
CLUSTERS = (1, 2, 4, 8)
WARPS_K = (8, 4, 2)
NOMINAL_CTAS = 128  # what splits are made for; a device may run more or fewer at once
PASS_COST = 0.1  # of a pass, beside its units


Eight = Literal["int8", "fp8"]  # weights with a scale a row; fp8 is e4m3
EIGHTS: tuple[Eight, ...] = ("int8", "fp8")

HOPPER = 227 << 10  # bytes of shared memory that a CTA may have
BLACKWELL_RTX = 99 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What (N, K) decide.

    Attributes:
        rows: N padded to whole passes.
        tiles: units of a strip.
        cluster: CTAs that share the columns.
        warps_k: warps of a CTA that share its columns.
    """

    rows: int
    tiles: int
    cluster: int
    warps_k: int

    @property
    def group_rows(self) -> int:
        """Rows of a pass of one cluster."""
        return PASS_ROWS // self.warps_k

    @property
    def groups(self) -> int:
        """Passes of all clusters together."""
        return self.rows // self.group_rows

    @property
    def x_tiles(self) -> int:
        """Most units of x that a CTA holds."""
        return -(-self.tiles // self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a kernel does what all of them do; the bits of a result hang on none of it, but for `wgmma`.

    Attributes:
        bulk: x comes by bulk copies, where its rows lie at multiples of 16 bytes and fill whole units.
        early: with `bulk`, a warp begins when the first quarter of its columns of x is there.
        fours: four multiplications that wait for nothing of each other follow one another.
        other_warps: eight warps where there would be sixteen, and sixteen for eight.
        wgmma: four warps multiply 64 rows together, x read from shared memory once for all of them. The one
            way that has cuts of its own (see `settled`), and bits perhaps.
        wide: with `wgmma`, matrices that need a larger cluster for those cuts take part, too.
    """

    bulk: bool = False
    early: bool = False
    fours: bool = False
    other_warps: bool = False
    wgmma: bool = False
    wide: bool = False


PLAIN = Way()
# What `weight12 bench --variants` times side by side.
WAYS_BY_NAME: Mapping[str, Way] = {
    "plain": PLAIN,
    "bulk": Way(bulk=True),
    "bulk-early": Way(bulk=True, early=True),
    "fours": Way(fours=True),
    "bulk-fours": Way(bulk=True, fours=True),
    "bulk-fours-warps": Way(bulk=True, fours=True, other_warps=True),
    "wgmma": Way(wgmma=True),
    "wgmma-bulk": Way(wgmma=True, bulk=True),
    "wgmma-wide": Way(wgmma=True, wide=True),
}
Choice = Mapping[int, Way]  # by blocks of tokens
CHOICES_BY_NAME: Mapping[str, Choice] = {
    **{name: dict.fromkeys(BLOCKS, way) for name, way in WAYS_BY_NAME.items()},
    # Its bits hang on the tokens, unless wgmma sums as mma.sync does.
    "wgmma-above-8": {1: Way(bulk=True), **dict.fromkeys(BLOCKS[1:], Way(wgmma=True))},
}
# What measured best on one H200, 2026-12-03; 8 blocks, which few matrices have room for, were not measured.
CHOICE: Choice = {1: Way(bulk=True), 2: PLAIN, 4: Way(bulk=True), 8: Way(bulk=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled kernel, and its shared memory.

    Attributes:
        blocks: of 8 tokens.
        raw: whether it reads bf16.
        cluster: as in the split.
        warps_k: as in the split.
        warps: of a CTA; of eight each takes 32 rows, of sixteen 16.
        pieces: of 16 rows in each warp's ring.
        batch: passes whose sums are exchanged at once.
        shared_bytes: of a CTA.
        way: how it works.
        gated: whether rows of gate and up come in turn and y is the gated one.
        eight: whether it reads eight bits, in place of bf16.
        desks: on which the warps that share rows lay their sums in turn, so that they meet once for each.
    """

    blocks: int
    raw: bool
    cluster: int
    warps_k: int
    warps: int
    pieces: int
    batch: int
    shared_bytes: int
    way: Way = PLAIN
    gated: bool = False
    eight: Eight | None = None
    desks: int = 1


def split(rows: int, columns: int, panel: int = STRIP) -> Split:
    """The split of a matrix [rows, columns]: the one whose slowest warp has least to do.

    Args:
        rows: N.
        columns: K.
        panel: rows that a pass has at least.
    """
    tiles = -(-columns // TILE)
    clusters = [size for size in CLUSTERS if tiles <= X_TILES * size] or [CLUSTERS[-1]]

    def cost(found: Split) -> float:
        passes = -(-found.groups // (NOMINAL_CTAS // found.cluster))
        parts = found.cluster * found.warps_k
        units = (-(-tiles // parts) + tiles / parts) / 2  # the warps of a team wait for each other in part
        return passes * (units + PASS_COST)

    candidates = []
    for cluster in clusters:
        for warps_k in WARPS_K:
            group = PASS_ROWS // warps_k
            if group < panel:
                continue
            padded = -(-rows // group) * group
            candidates.append(Split(rows=padded, tiles=tiles, cluster=cluster, warps_k=warps_k))
    least = min(cost(found) for found in candidates)
    return next(found for found in candidates if cost(found) <= 1.02 * least)


@functools.lru_cache(maxsize=1024)
def grouped_split(rows: int, columns: int) -> Split:
    """The split of a matrix for four warps that multiply together."""
    return split(rows, columns, PANEL)


def settled(
    found: Split, rows: int, columns: int, choice: Choice, *, wgmma: bool = True
) -> tuple[Split, Choice]:
    """How a matrix is divided under a choice, and the ways that its kernels then take.

    Its sums are cut as wgmma can at every number of tokens, if any way asked for uses it.

    Args:
        found: its own split.
        rows: N.
        columns: K.
        choice: the ways asked for. A token's bits hang on how many others there are if some ways use wgmma
            and others do not, unless it sums as mma.sync does.
        wgmma: whether the device has it.
    """
    asked = [way for way in choice.values() if way.wgmma]
    if not asked:
        return found, choice
    grouped = grouped_split(rows, columns)
    if wgmma and (grouped.cluster <= found.cluster or any(way.wide for way in asked)):
        return grouped, choice
    return found, {
        blocks: dataclasses.replace(way, wgmma=False, wide=False) for blocks, way in choice.items()
    }


def variant(
    found: Split,
    tokens: int,
    *,
    raw: bool,
    room: int = HOPPER,
    choice: Choice = CHOICE,
    gated: bool = False,
    eight: Eight | None = None,
) -> Variant:
    """The kernel for so many tokens; it takes fewer at once if their x does not fit.

    Few tokens take sixteen warps of 16 rows; many take eight of 32, as every warp reads all of x. Eight also
    need less for their rings.

    Raises:
        ValueError: not even 8 tokens of so many columns fit, or the way does not fit the split.
    """
    wanted = next(blocks for blocks in BLOCKS if tokens <= 8 * blocks)
    for blocks in reversed(BLOCKS[: BLOCKS.index(wanted) + 1]):
        way = choice[blocks]
        for warps in WGMMA_WARPS if way.wgmma else (OTHER_WARPS if way.other_warps else WARPS)[blocks]:
            fitting = fit(found, blocks, warps, raw=raw, room=room, way=way, eight=eight)
            if fitting is not None:
                return dataclasses.replace(fitting, gated=gated)
    raise ValueError(f"{found.tiles * TILE} columns are too many for {room} bytes of shared memory")


def fit(
    found: Split,
    blocks: int,
    warps: int,
    *,
    raw: bool,
    room: int,
    way: Way = PLAIN,
    eight: Eight | None = None,
) -> Variant | None:
    """The kernel of this layout with the largest rings; None if they would be too small.

    Raises:
        ValueError: the way takes more rows than a pass has.
    """
    if way.wgmma and found.group_rows < PANEL:
        raise ValueError(f"a pass of {found.group_rows} rows; with wgmma it takes {PANEL}: see `settled`")
    best: tuple[bool, int, int, int] | None = None
    large = room >= LARGE_ROOM
    slot = SLOT_BYTES[raw] if eight is None else EIGHT_SLOT_BYTES
    most = MAX_PIECES[warps] if eight is None else MAX_PIECES[warps] * 3 // 2  # as many bytes
    for batch, desks in itertools.product((max(1, MAX_BATCH // blocks), 1), (1, 1 + way.wgmma)):
        rest = shared_bytes(found, blocks, batch, 0, raw=raw, way=way, desks=desks)
        pieces = min(most, (room - rest) // (warps * slot))
        ring = pieces * warps * slot
        if ring >= MIN_RING[large] and pieces * warps >= STEP_PIECES:
            best = max(best or (False, 0, 0, 0), (ring >= GOOD_RING[large], batch, pieces, desks))
    if best is None:
        return None
    _, batch, pieces, desks = best
    return Variant(
        blocks=blocks,
        raw=raw,
        cluster=found.cluster,
        warps_k=found.warps_k,
        warps=warps,
        pieces=pieces,
        batch=batch,
        shared_bytes=shared_bytes(found, blocks, batch, pieces * warps * slot, raw=raw, way=way, desks=desks),
        way=way,
        eight=eight,
        desks=desks,
    )


def shared_bytes(
    found: Split, blocks: int, batch: int, rings: int, *, raw: bool, way: Way = PLAIN, desks: int = 1
) -> int:
    """Shared memory of a CTA: bytes of its rings, partial sums, inboxes, palettes, barriers, x."""
    inboxes = 2 * batch * (8 // found.warps_k) * blocks * 1024
    barriers = 16 + (8 * found.warps_k * (1 + way.early) if way.bulk else 0)
    x = x_unit(blocks) * found.x_tiles if way.wgmma else 8 * blocks * (found.x_tiles * 128 + 16)
    return rings + 8192 * desks + inboxes + (0 if raw else 2048) + barriers + x


def x_unit(blocks: int) -> int:
    """Bytes of 64 columns of x for wgmma: eight slabs, padded to spread stores over banks."""
    return 8 * (128 * blocks + 16) + 32
