"""The rows that the format keeps raw, packed after all, group by group: few groups stay raw for the kernels.

One group of 64 columns with more than eight classes makes its whole row raw in the file. Most other groups
of that row fit a palette; the kernels patch the few that do not, and need no second launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_mechanisms.weight12.layout import CLASSES, GROUP, HALF, RAW_ROW

BLOCK = 1 << 16  # groups handled at once
PATTERNS = 128  # classes that exist


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Raw rows as groups.

    Attributes:
        lo: low bytes [R, 64 Q].
        code: nibbles as in the format [R, 32 Q]; 0 in raw groups.
        numbers: palette of each group [R, Q]; 255 if none covers it.
        highs: high bytes of the raw groups [G, 64], row by row.
    """

    lo: Tensor
    code: Tensor
    numbers: Tensor
    highs: Tensor


def regroup(arrays: Mapping[str, Tensor]) -> Groups:
    """The raw rows of a packed matrix with the matrix's own palettes.

    Args:
        arrays: rawval [R, K], pidx [N, Q] and ptab [P, 8] of the matrix, R > 0.
    """
    values, q = arrays["rawval"].view(torch.int16), arrays["pidx"].shape[1]
    bits = torch.nn.functional.pad(values, (0, GROUP * q - values.shape[1])).reshape(-1, GROUP)
    high = (bits >> 8 & 0xFF).to(torch.uint8)
    numbers, code = [], []
    lookup = _lookup(arrays["ptab"])
    for start in range(0, len(bits), BLOCK):
        part = high[start : start + BLOCK]
        found = _covering(part & 0x7F, arrays["ptab"])
        nibbles = lookup[found.long()[:, None] << 8 | part.long()]
        nibbles[found == RAW_ROW] = 0
        numbers.append(found)
        code.append(nibbles[:, :HALF] | nibbles[:, HALF:] << 4)
    chosen = torch.cat(numbers)
    return Groups(
        lo=bits.to(torch.uint8).reshape(-1, GROUP * q),
        code=torch.cat(code).reshape(-1, HALF * q),
        numbers=chosen.reshape(-1, q),
        highs=high[chosen == RAW_ROW],
    )


def _covering(classes: Tensor, ptab: Tensor) -> Tensor:
    """Number of the first palette that has all classes of a group [groups]; `RAW_ROW` if none has."""
    used = torch.zeros((len(classes), PATTERNS), device=classes.device).scatter_(1, classes.long(), 1.0)
    lacking = torch.ones((len(ptab), PATTERNS), device=classes.device).scatter_(1, ptab.long(), 0.0)
    covers = (used @ lacking.t()) == 0  # counts of at most 64: exact
    first = covers.to(torch.uint8).argmax(1).to(torch.uint8)
    return torch.where(covers.any(1), first, RAW_ROW).to(torch.uint8)


def _lookup(ptab: Tensor) -> Tensor:
    """Nibble of each high byte under each palette number, flat [256 * 256]."""
    out = torch.zeros((256, 256), dtype=torch.uint8, device=ptab.device)
    numbers = torch.arange(len(ptab), device=ptab.device)
    for index in range(CLASSES):
        out[numbers, ptab[:, index].long()] = index
        out[numbers, ptab[:, index].long() | 0x80] = index | 8
    return out.reshape(-1)
