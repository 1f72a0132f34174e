"""A packed matrix as torch tensors: decoded whole or in rows, cut for shards, joined for fused layers.

This is the reference for every kernel, in plain torch, on any device. All of it moves stored bytes; only
`decode` and `gather` make bf16 of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_mechanisms.weight12.layout import (
    CLASSES,
    GROUP,
    HALF,
    MAX_PALETTES,
    RAW_ROW,
    SUFFIXES,
    Packed,
    groups,
)

BLOCK = 1 << 22  # weights decoded at once: the intermediate values take some 20 bytes each


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planes:
    """The arrays of a matrix [rows, columns], as in the format (see README.md).

    Attributes:
        columns: K.
        lo: [N, 64 Q] uint8.
        code: [N, 32 Q] uint8.
        pidx: [N, Q] uint8.
        ptab: [P, 8] uint8.
        rawrow: [R] int32, ascending.
        rawval: [R, K] int16: bf16 patterns as whole numbers, so that no cast moves a NaN.
    """

    columns: int
    lo: Tensor
    code: Tensor
    pidx: Tensor
    ptab: Tensor
    rawrow: Tensor
    rawval: Tensor

    @property
    def rows(self) -> int:
        """N."""
        return len(self.lo)

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        return self.lo.device

    @property
    def stored_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(tensor.nbytes for tensor in self.arrays().values())

    def arrays(self) -> dict[str, Tensor]:
        """Suffix and array, in the order of the format."""
        return {suffix: getattr(self, suffix) for suffix in SUFFIXES}

    def to(self, device: torch.device | str) -> Planes:
        """The same on another device."""
        return from_arrays(
            {suffix: array.to(device) for suffix, array in self.arrays().items()}, self.columns
        )

    def decode(self) -> Tensor:
        """All weights [N, K], bf16."""
        out = torch.empty((self.rows, self.columns), dtype=torch.bfloat16, device=self.device)
        step = max(1, BLOCK // max(1, self.columns))
        for start in range(0, self.rows, step):
            out[start : start + step] = self.decode_rows(start, min(start + step, self.rows))
        return out

    def decode_rows(self, start: int, stop: int) -> Tensor:
        """Weights of rows `start` to `stop`, bf16."""
        rows = torch.arange(start, stop, device=self.device)
        return self._decoded(self.lo[start:stop], self.code[start:stop], self.pidx[start:stop], rows)

    def gather(self, ids: Tensor) -> Tensor:
        """Rows `ids` [...] of the matrix, bf16 [..., K]: an embedding look-up."""
        flat = ids.reshape(-1)
        found = self._decoded(self.lo[flat], self.code[flat], self.pidx[flat], flat)
        return found.reshape(*ids.shape, self.columns)

    def take_rows(self, index: Tensor) -> Planes:
        """The matrix of these rows [n], in this order."""
        rows = index.to(self.device)
        pidx = self.pidx[rows]
        slots = self._raw_slots()[rows]
        raw = slots >= 0
        return Planes(
            columns=self.columns,
            lo=self.lo[rows],
            code=self.code[rows],
            pidx=pidx,
            ptab=self.ptab,
            rawrow=raw.nonzero().reshape(-1).int(),
            rawval=self.rawval[slots[raw].long()],
        )

    def take_columns(self, start: int, stop: int) -> Planes:
        """The matrix of columns `start` to `stop`.

        Raises:
            ValueError: a cut is inside a group of 64.
        """
        if start % GROUP or (stop % GROUP and stop != self.columns) or not 0 <= start < stop <= self.columns:
            raise ValueError(
                f"columns {start} to {stop} of {self.columns}: weight12 is cut at multiples of {GROUP} only"
            )
        first, last = start // GROUP, groups(stop)
        return Planes(
            columns=stop - start,
            lo=self.lo[:, GROUP * first : GROUP * last].contiguous(),
            code=self.code[:, HALF * first : HALF * last].contiguous(),
            pidx=self.pidx[:, first:last].contiguous(),
            ptab=self.ptab,
            rawrow=self.rawrow,
            rawval=self.rawval[:, start:stop].contiguous(),
        )

    def raw_slots(self) -> Tensor:
        """Of each row [N] int32, its place in `rawval`; -1 if it is not raw."""
        return self._raw_slots().int()

    def _raw_slots(self) -> Tensor:
        slots = torch.full((self.rows,), -1, dtype=torch.int64, device=self.device)
        slots[self.rawrow.long()] = torch.arange(len(self.rawrow), device=self.device)
        return slots

    def _decoded(self, lo: Tensor, code: Tensor, pidx: Tensor, rows: Tensor) -> Tensor:
        """The weights of some rows' bytes; `rows` are their numbers."""
        count, q = pidx.shape
        numbers = torch.where(pidx == RAW_ROW, 0, pidx).long()
        palettes = self.ptab[numbers.reshape(-1)].reshape(count, q, CLASSES)
        pair = code.reshape(count, q, HALF)
        nibbles = torch.cat((pair & 0x0F, pair >> 4), dim=2)  # [n, Q, 64]
        classes = palettes.gather(2, (nibbles & 7).long())
        high = (nibbles & 8) << 4 | classes
        octets = torch.stack((lo.reshape(count, q, GROUP), high), dim=3)  # little endian
        bits = octets.reshape(count, 2 * GROUP * q).view(torch.int16)[:, : self.columns]
        if len(self.rawrow):
            slots = self._raw_slots()[rows]
            bits = torch.where((slots >= 0)[:, None], self.rawval[slots.clamp(min=0)], bits)
        return bits.contiguous().view(torch.bfloat16)


def from_packed(packed: Packed) -> Planes:
    """A packed matrix as torch tensors, its arrays copied.

    Raises:
        ValueError: the packed tensor is no matrix.
    """
    if len(packed.shape) != 2:
        raise ValueError(f"a linear layer has a matrix, not a tensor of shape {packed.shape}")
    arrays = {suffix: torch.from_numpy(array.copy()) for suffix, array in packed.arrays()}
    return from_arrays(arrays, packed.shape[1])


def from_arrays(arrays: Mapping[str, Tensor], columns: int) -> Planes:
    """Planes of the six arrays by suffix, whatever whole-number or bf16 type the last two have.

    Args:
        arrays: trusted: held by `container.fault` or made by an encoder.
        columns: K.
    """
    return Planes(
        columns=columns,
        lo=arrays["lo"],
        code=arrays["code"],
        pidx=arrays["pidx"],
        ptab=arrays["ptab"],
        rawrow=arrays["rawrow"].to(torch.int32),
        rawval=arrays["rawval"].view(torch.int16),
    )


def zeros(rows: int, columns: int, device: torch.device | str = "cpu") -> Planes:
    """A matrix of +0."""
    q = groups(columns)

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Planes(
        columns=columns,
        lo=empty(rows, GROUP * q),
        code=empty(rows, HALF * q),
        pidx=empty(rows, q),
        ptab=empty(1, CLASSES),
        rawrow=empty(0, dtype=torch.int32),
        rawval=empty(0, columns, dtype=torch.int16),
    )


def concatenate(parts: Sequence[Planes]) -> Planes | None:
    """One matrix of the rows of several, their palette tables joined; None if 255 palettes do not do.

    Args:
        parts: at least one, all with the same columns and device.
    """
    if len({part.columns for part in parts}) != 1:
        raise ValueError(f"parts of {[part.columns for part in parts]} columns cannot be one matrix")
    if len(parts) == 1:
        return parts[0]
    tables = torch.cat([part.ptab for part in parts])
    ptab, places = torch.unique(tables, dim=0, return_inverse=True)
    if len(ptab) > MAX_PALETTES:
        return None
    numbers = places.to(torch.uint8).split([len(part.ptab) for part in parts])
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.rows)
    return Planes(
        columns=parts[0].columns,
        lo=torch.cat([part.lo for part in parts]),
        code=torch.cat([part.code for part in parts]),
        pidx=torch.cat([_renumbered(part.pidx, new) for part, new in zip(parts, numbers, strict=True)]),
        ptab=ptab,
        rawrow=torch.cat([part.rawrow + start for part, start in zip(parts, starts, strict=False)]),
        rawval=torch.cat([part.rawval for part in parts]),
    )


def _renumbered(pidx: Tensor, numbers: Tensor) -> Tensor:
    """Palette numbers of a part in the joined table; raw rows stay marked."""
    table = torch.full((RAW_ROW + 1,), RAW_ROW, dtype=torch.uint8, device=pidx.device)
    table[: len(numbers)] = numbers
    return table[pidx.long()]
