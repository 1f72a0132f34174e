"""Gated DeltaNet in steps of fixed shape, in plain torch: rows of a chain or tree, and what is kept of them.

Each row starts from the state of its parent, which is a number on the device. The operations on a row are
those of `targets.gated_delta`, so its bits are too. What a row writes goes into a log, from which accepted
rows are replayed into the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.targets.gated_delta import (
    STATE_TYPE,
    DeltaInputs,
    DeltaMixer,
    DeltaSizes,
    DeltaState,
    Write,
    written,
)

WORD = 64  # rows that a word of bits tells of


class DeltaPlan(NamedTuple):
    """Where the rows of a forward stand; shared by its layers. All int64."""

    above: Tensor  # [rows]: 0 for the committed state, else 1 + the row in front
    windows: Tensor  # [rows, kernel]: places in the window and the rows behind it, the oldest first
    seen: Tensor  # [rows]: a bit for each row on the way to a row, itself among them; none if nobody asks


class DeltaMemory(NamedTuple):
    """The committed states of one request, of every recurrent layer."""

    memories: Tensor  # [layers, key_heads, repeats, key_dim, value_dim], float32
    windows: Tensor  # [layers, kernel - 1, channels]: raw inputs, the oldest first


class DeltaLog(NamedTuple):
    """What the rows of a forward write, layer by layer; as `gated_delta.Write`, and the raw inputs."""

    key: Tensor  # [layers, rows, key_heads, key_dim]
    value: Tensor  # [layers, rows, key_heads, repeats, value_dim]
    beta: Tensor  # [layers, rows, key_heads, repeats]
    log_decay: Tensor  # as beta
    raw: Tensor  # [layers, rows, channels]


class DeltaKernels(NamedTuple):
    """One way to compute the recurrent layers of a step."""

    recur: Callable[[DeltaMixer, DeltaInputs, DeltaPlan, DeltaMemory, DeltaLog, int], Tensor]
    replay: Callable[[DeltaMemory, DeltaLog, Tensor, Tensor], None]


def new_memory(sizes: DeltaSizes, layers: int, dtype: torch.dtype, device: torch.device) -> DeltaMemory:
    """States of a sequence without tokens."""
    heads = (layers, sizes.key_heads, sizes.value_heads // sizes.key_heads)
    window = (layers, sizes.kernel - 1, sizes.channels)
    return DeltaMemory(
        torch.zeros((*heads, sizes.key_dim, sizes.value_dim), dtype=STATE_TYPE, device=device),
        torch.zeros(window, dtype=dtype, device=device),
    )


def new_log(sizes: DeltaSizes, layers: int, rows: int, dtype: torch.dtype, device: torch.device) -> DeltaLog:
    """Buffers of zeros."""
    heads = (layers, rows, sizes.key_heads, sizes.value_heads // sizes.key_heads)

    def zeros(*shape: int, kind: torch.dtype = STATE_TYPE) -> Tensor:
        return torch.zeros(shape, dtype=kind, device=device)

    return DeltaLog(
        zeros(layers, rows, sizes.key_heads, sizes.key_dim),
        zeros(*heads, sizes.value_dim, kind=dtype),
        zeros(*heads),
        zeros(*heads),
        zeros(layers, rows, sizes.channels, kind=dtype),
    )


def chain_plan(rows: int, kernel: int, device: torch.device, *, bits: bool = False) -> DeltaPlan:
    """Of rows one behind the other; `bits` tells what each sees, of `WORD` rows at most."""
    row = torch.arange(rows, device=device)
    seen = (torch.ones_like(row) << row).cumsum(0) if bits else row[:0]
    return DeltaPlan(row, row[:, None] + torch.arange(kernel, device=device), seen)


def tree_plan(
    depths: Tensor, paths: Tensor, parents: Tensor, kernel: int, *, bits: bool = False
) -> DeltaPlan:
    """Of the rows of a tree; arguments as in `trees.TreeTurn` and `chain_plan`."""
    up = torch.arange(kernel - 1, -1, -1, device=depths.device)  # steps towards the anchor, and beyond
    at = depths[:, None] - up
    found = paths.gather(1, at.clamp_min(0)) + (kernel - 1)
    above, row = parents.clamp_min(0) + 1, torch.arange(len(depths), device=depths.device)
    seen = row[:0]
    if bits:
        one, level = torch.ones_like(row), torch.arange(paths.shape[1], device=depths.device)
        way = torch.where(level < depths[:, None], one[:, None] << paths, 0).sum(1)
        seen = way | (one << row)
    return DeltaPlan(torch.where(row == 0, 0, above), torch.where(at >= 0, found, kernel - 1 + at), seen)


def recur(
    mixer: DeltaMixer, inputs: DeltaInputs, plan: DeltaPlan, memory: DeltaMemory, log: DeltaLog, layer: int
) -> Tensor:
    """Run the rows of one layer, each from the state of its parent.

    Args:
        mixer: of the layer.
        inputs: of the rows.
        plan: of the forward.
        memory: committed; left as it is.
        log: takes what the rows write.
        layer: counted among the recurrent ones.

    Returns:
        [rows, value_heads x value_dim].
    """
    root, count = memory.memories[layer], len(inputs.raw)
    states = root.new_empty((count + 1, *root.shape))
    states[0] = root
    joined = torch.cat((memory.windows[layer], inputs.raw))
    outputs = []
    for row in range(count):
        above = DeltaState(
            states.index_select(0, plan.above[row : row + 1])[0],
            joined.index_select(0, plan.windows[row, :-1]),
        )
        output, write, after = mixer.step(above, DeltaInputs(*(part[row] for part in inputs)))
        outputs.append(output)
        states[row + 1] = after.memory
        for kept, part in zip(log[:-1], write, strict=True):
            kept[layer, row] = part
    log.raw[layer].copy_(inputs.raw)
    return torch.stack(outputs)


def replay(memory: DeltaMemory, log: DeltaLog, path: Tensor, kept: Tensor) -> None:
    """Bring the first rows of a path into the states.

    Args:
        memory: the states that the rows were run from; written to.
        log: of those rows.
        path: rows, each the parent of the next, the first one behind the states, [rows].
        kept: how many of them, [1].
    """
    back = memory.windows.shape[1]
    place = kept + torch.arange(back, device=path.device)
    for layer, (state, window) in enumerate(zip(memory.memories, memory.windows, strict=True)):
        found = state
        for index in range(len(path)):
            row = path[index : index + 1]
            write = Write(*(part[layer].index_select(0, row)[0] for part in log[:-1]))
            found = torch.where(kept > index, written(found, write), found)
        state.copy_(found)
        window.copy_(torch.cat((window, log.raw[layer].index_select(0, path))).index_select(0, place))


TORCH_DELTA = DeltaKernels(recur, replay)
