"""bf16 patterns to the arrays of the format, in two passes over blocks that fit a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference_mechanisms.weight12 import palette
from reference_mechanisms.weight12.layout import (
    CLASSES,
    GROUP,
    HALF,
    RAW_ROW,
    Bits,
    Bytes,
    Packed,
    Rows,
    groups,
    rows_columns,
)

BLOCK = 1 << 15  # weights handled at once: the words of the sets stay in cache

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the first pass found: palettes, the palette of each group [N, Q], the raw rows [R]."""

    palettes: tuple[int, ...]
    pidx: Bytes
    raw_rows: Rows


def encode(bits: Bits) -> Packed:
    """Pack any bf16 tensor, given as its 16-bit patterns of any shape; `decode` gives them back."""
    return fill(bits, make_plan(bits))


def make_plan(bits: Bits) -> Plan:
    """First pass: which classes each group uses, and the palettes that cover them."""
    rows, columns = rows_columns(bits.shape)
    q = groups(columns)
    numbers: dict[int, int] = {}  # set -> its number, in order of appearance
    ids = np.empty((rows, q), np.intp)
    totals: list[int] = []
    for start, block in blocks(bits):
        sets, inverse, counts = _distinct_sets(block)
        new = [numbers.setdefault(found, len(numbers)) for found in sets]
        totals.extend([0] * (len(numbers) - len(totals)))
        for number, count in zip(new, counts.tolist(), strict=True):
            totals[number] += count
        ids[start : start + len(block)] = np.array(new, np.intp)[inverse].reshape(len(block), q)
    coverable = {found: totals[number] for found, number in numbers.items() if found}
    palettes = palette.choose_palettes(coverable)
    lookup = [palette.number_of(found, palettes) if found else RAW_ROW for found in numbers]
    pidx = np.array(lookup, np.uint8)[ids] if rows and q else np.empty((rows, q), np.uint8)
    raw = (pidx == RAW_ROW).any(axis=1)
    pidx[raw] = RAW_ROW
    return Plan(palettes, pidx, np.flatnonzero(raw).astype(np.uint32))


def fill(bits: Bits, plan: Plan) -> Packed:
    """Second pass: the arrays."""
    rows, columns = rows_columns(bits.shape)
    q = groups(columns)
    lo = np.empty((rows, GROUP * q), np.uint8)
    code = np.empty((rows, HALF * q), np.uint8)
    nibbles = _nibbles(plan.palettes)
    for start, block in blocks(bits):
        stop = start + len(block)
        lo[start:stop] = block & 0xFF
        first = np.minimum(plan.pidx[start:stop], len(plan.palettes)).astype(np.intp) << 8
        high = (block >> 8).astype(np.uint8).reshape(len(block), q, GROUP)
        found = nibbles.take(first[..., None] + high)
        code[start:stop] = (found[..., :HALF] | found[..., HALF:] << 4).reshape(len(block), HALF * q)
    lo[plan.raw_rows] = 0
    return Packed(
        shape=bits.shape,
        lo=lo,
        code=code,
        pidx=plan.pidx,
        ptab=palette.table(plan.palettes),
        rawrow=plan.raw_rows,
        rawval=bits.reshape(rows, columns)[plan.raw_rows],
    )


def blocks(bits: Bits) -> Iterator[tuple[int, Bits]]:
    """First row and patterns [n, 64 Q] of block after block, rows padded with +0 to whole groups."""
    rows, columns = rows_columns(bits.shape)
    width = GROUP * groups(columns)
    if not rows or not columns:
        return
    flat = bits.reshape(rows, columns)
    step = max(1, BLOCK // width)
    for start in range(0, rows, step):
        block = flat[start : start + step]
        if width != columns:
            block = np.pad(block, ((0, 0), (0, width - columns)))
        yield start, block


def _distinct_sets(block: Bits) -> tuple[list[int], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Distinct sets of the groups of a block; inverse and counts as in numpy's unique.

    A set of more than 8 classes is given as 0, whatever its classes.
    """
    classes: Bits = (block >> np.uint16(8) & np.uint16(0x7F)).reshape(-1, GROUP)
    base = int(classes.min())
    classes -= np.uint16(base)
    words = _bit_words(classes, int(classes.max()))
    words[:, _ones(words).sum(axis=0) > CLASSES] = 0
    order = np.lexsort(words)
    ordered = words[:, order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    inverse = np.empty(len(order), np.intp)
    inverse[order] = np.cumsum(fresh) - 1
    found = ordered[:, fresh].tolist()
    sets = [word << base for word in found[0]]
    if len(found) > 1:
        sets = [low | high << 64 + base for low, high in zip(sets, found[1], strict=True)]
    return sets, inverse, np.bincount(inverse)


def _bit_words(classes: Bits, largest: int) -> Words:
    """Each group's set of classes [groups, 64], in words of 64 bits [words, groups]."""
    if largest < 32:  # the common case, at half the memory traffic
        halves = [np.uint32(1) << classes.astype(np.uint32)]
    else:
        bits = np.uint64(1) << (classes & np.uint16(63)).astype(np.uint64)
        above, none = classes >= 64, np.uint64(0)
        halves = [bits] if largest < 64 else [np.where(above, none, bits), np.where(above, bits, none)]
    return np.array([np.bitwise_or.reduce(half, axis=1) for half in halves], np.uint64)


def _ones(words: Words) -> Words:
    """Set bits of each word: pairs, nibbles, bytes, then their sum by one product."""
    pairs = words - (words >> np.uint64(1) & np.uint64(0x5555555555555555))
    mask = np.uint64(0x3333333333333333)
    nibbles = (pairs & mask) + (pairs >> np.uint64(2) & mask)
    octets = (nibbles + (nibbles >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ones: Words = octets * np.uint64(0x0101010101010101) >> np.uint64(56)
    return ones


def _nibbles(palettes: tuple[int, ...]) -> Bytes:
    """Nibble of each high byte under each palette [P + 1, 256], flat; the last palette gives 0."""
    found = np.zeros((len(palettes) + 1, 256), np.uint8)
    for number, chosen in enumerate(palettes):
        for index, member in enumerate(palette.members(chosen)):
            found[number, member] = index
            found[number, member | 0x80] = index | 0x08
    return found.reshape(-1)
