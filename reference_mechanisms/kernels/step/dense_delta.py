"""Gated DeltaNet in steps of fixed shape in the WY form of `targets.delta_wy`, in plain torch.

All rows at once from the committed state: dense products under a mask of ancestors, which are bits on the
device. The log is that of `delta.py`, and so is what is kept of it: accepted rows are replayed one after
another, so a state does not hang on how a step was cut. Outputs round otherwise than those of `delta.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_mechanisms.kernels.step.delta import (
    WORD,
    DeltaKernels,
    DeltaLog,
    DeltaMemory,
    DeltaPlan,
    replay,
)
from reference_mechanisms.targets.delta_wy import solve, spell
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaMixer, gated_norm


def recur(
    mixer: DeltaMixer, inputs: DeltaInputs, plan: DeltaPlan, memory: DeltaMemory, log: DeltaLog, layer: int
) -> Tensor:
    """As `delta.recur`, all rows at once."""
    joined = torch.cat((memory.windows[layer], inputs.raw))
    rows = spell(mixer, inputs, joined[plan.windows])
    solved = solve(memory.memories[layer], rows, ancestors_of(plan.seen, rows.key.dtype), _triangular)
    written = (
        rows.key.transpose(0, 1), rows.value.movedim(2, 0), rows.beta.movedim(-1, 0),
        rows.log_decay.movedim(-1, 0), inputs.raw,
    )  # fmt: skip
    for kept, part in zip(log, written, strict=True):
        kept[layer].copy_(part)
    read = solved.read.movedim(2, 0).reshape(inputs.z.shape).to(inputs.raw.dtype)
    return gated_norm(read, inputs.z, mixer.weights.norm, mixer.eps).flatten(1)


def ancestors_of(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask [rows, rows] of bits [rows].

    Raises:
        ValueError: there are more rows than bits.
    """
    if len(seen) > WORD:
        raise ValueError(f"{len(seen)} rows; a word of bits tells of {WORD}")
    return (seen[:, None] >> torch.arange(len(seen), device=seen.device) & 1).to(dtype)


def _triangular(overlap: Tensor, right: Tensor) -> Tensor:
    found: Tensor = torch.linalg.solve_triangular(overlap, right, upper=False, unitriangular=True)
    return found


TORCH_DENSE_DELTA = DeltaKernels(recur, replay)
