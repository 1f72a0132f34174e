"""Pack a bf16 matrix on its own device: the arrays of `encode`, in torch, for matrices made on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_mechanisms.weight12 import palette
from reference_mechanisms.weight12.layout import CLASSES, GROUP, HALF, RAW_ROW, groups

BLOCK = 1 << 27  # weights handled at once


def pack(weight: Tensor) -> dict[str, Tensor]:
    """The six arrays of a bf16 matrix [N, K], by suffix, on its device; bit for bit those of `encode`."""
    rows, columns = weight.shape
    q = groups(columns)
    padded = torch.nn.functional.pad(weight.view(torch.int16), (0, GROUP * q - columns))
    step = max(1, BLOCK // (GROUP * q))
    sets = torch.cat([_sets(padded[start : start + step]) for start in range(0, rows, step)])
    found, inverse, counts = torch.unique(sets, dim=0, return_inverse=True, return_counts=True)
    masks = [low & (1 << 64) - 1 | (high & (1 << 64) - 1) << 64 for low, high in found.tolist()]
    coverable = {
        mask: count for mask, count in zip(masks, counts.tolist(), strict=True) if mask.bit_count() <= CLASSES
    }
    palettes = palette.choose_palettes(coverable)
    numbers = [palette.number_of(mask, palettes) if mask in coverable else RAW_ROW for mask in masks]
    pidx = torch.tensor(numbers, dtype=torch.uint8, device=weight.device)[inverse].reshape(rows, q)
    raw = (pidx == RAW_ROW).any(1)
    pidx[raw] = RAW_ROW
    rawrow = raw.nonzero().reshape(-1)
    table = torch.from_numpy(palette.table(palettes)).to(weight.device)
    lookup = _lookup(palettes).to(weight.device)
    lo, code = [], []
    for start in range(0, rows, step):
        block = padded[start : start + step]
        lo.append(block.to(torch.uint8))
        high = (block >> 8 & 0xFF).reshape(-1, q, GROUP)
        first = pidx[start : start + step].int()[..., None] << 8
        nibbles = lookup[first + high]
        code.append((nibbles[..., :HALF] | nibbles[..., HALF:] << 4).reshape(-1, HALF * q))
    low = torch.cat(lo)
    low[rawrow] = 0
    return {
        "lo": low,
        "code": torch.cat(code),
        "pidx": pidx,
        "ptab": table,
        "rawrow": rawrow,
        "rawval": weight[rawrow],
    }


def _sets(block: Tensor) -> Tensor:
    """Classes of each group as bits of two words [groups, 2]."""
    classes = (block >> 8 & 0x7F).reshape(-1, GROUP).to(torch.uint8).t().contiguous()
    out = torch.zeros((classes.shape[1], 2), dtype=torch.int64, device=block.device)
    one = torch.ones((), dtype=torch.int64, device=block.device)
    for column in classes:
        bit = one << (column & 63).long()
        out[:, 0] |= torch.where(column < 64, bit, 0)
        out[:, 1] |= torch.where(column < 64, 0, bit)
    return out


def _lookup(palettes: tuple[int, ...]) -> Tensor:
    """Nibble of each high byte under each palette number, flat [256 * 256]; `RAW_ROW` gives 0."""
    out = torch.zeros((256, 256), dtype=torch.uint8)
    for number, chosen in enumerate(palettes):
        for index, member in enumerate(palette.members(chosen)):
            out[number, member] = index
            out[number, member | 0x80] = index | 8
    return out.reshape(-1)
