"""Gated DeltaNet over whole sequences with gradients: chunks solved at once, one state handed on.

The equations are those of `targets/delta_wy.py` with a chain for a tree. The unit-triangular system of a
chunk is inverted block by block, halves from quarters and so on: all of it batched products, as stable as
substitution, and recordable as a CUDA graph. Products are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64


class Rows(NamedTuple):
    """What the rows of sequences read and write."""

    query: Tensor  # [sequences, heads, rows, key_dim], float32, scaled
    key: Tensor  # as `query`, of unit length
    value: Tensor  # [sequences, heads, rows, value_dim], float32
    beta: Tensor  # [sequences, heads, rows], float32
    log_decay: Tensor  # as `beta`


def delta_rule(rows: Rows, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Outputs [sequences, heads, rows, value_dim] and the memory behind the last row.

    Args:
        rows: of any length; padded inside to whole chunks.
        memory: in front of the first row, [sequences, heads, key_dim, value_dim]; None: zeros.
    """
    count = rows.query.shape[2]
    padding = -count % CHUNK
    query, key, value = (F.pad(part, (0, 0, 0, padding)) for part in rows[:3])
    beta, log_decay = (F.pad(part, (0, padding)) for part in rows[3:])
    query, key, value, beta, log_decay = (
        part.reshape(*part.shape[:2], -1, CHUNK, *part.shape[3:])
        for part in (query, key, value, beta, log_decay)
    )
    sums = log_decay.cumsum(-1)
    segment = sums[..., :, None] - sums[..., None, :]
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).tril()
    decay = segment.masked_fill(~seen, -torch.inf).exp()
    overlap = (beta[..., None] * decay * (key @ key.transpose(-1, -2))).tril(-1)
    solved = unit_inverse(overlap) @ torch.cat(
        (beta[..., None] * value, (beta * sums.exp())[..., None] * key), dim=-1
    )
    wanted, known = solved.split([value.shape[-1], key.shape[-1]], dim=-1)  # type: ignore[no-untyped-call]
    attended = decay * (query @ key.transpose(-1, -2))
    asking = query * sums.exp()[..., None]
    last = sums[..., -1:]
    writing = (key * (last - sums).exp()[..., None]).transpose(-1, -2)
    kept = last.exp()[..., None]
    if memory is None:
        memory = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
    found = []
    for chunk in range(query.shape[2]):
        delta = wanted[:, :, chunk] - known[:, :, chunk] @ memory
        found.append(asking[:, :, chunk] @ memory + attended[:, :, chunk] @ delta)
        memory = kept[:, :, chunk] * memory + writing[:, :, chunk] @ delta
    return torch.cat(found, dim=2)[:, :, :count], memory


def unit_inverse(strict: Tensor) -> Tensor:
    """Inverse of I + strict, for strictly lower triangular matrices [..., n, n], n a power of two."""
    size = strict.shape[-1]
    if size == 1:
        return torch.ones_like(strict)
    half = size // 2
    corners = torch.stack((strict[..., :half, :half], strict[..., half:, half:]))
    upper, lower = unit_inverse(corners)
    left = -lower @ strict[..., half:, :half] @ upper
    return torch.cat((F.pad(upper, (0, half)), torch.cat((left, lower), dim=-1)), dim=-2)
