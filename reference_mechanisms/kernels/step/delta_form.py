"""Recurrent layers outside recorded steps, in the kernels of those: `gated_delta.DeltaForm` with their bits.

A batch of requests on a hybrid target runs each request's rows by themselves, and a recurrence in plain torch
is a few dozen launches a row. Here it is one launch for all rows of a request, and one for a commit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.kernels.step.delta import (
    DeltaKernels,
    DeltaLog,
    DeltaMemory,
    DeltaPlan,
    new_log,
)
from reference_mechanisms.targets.gated_delta import (
    Committable,
    DeltaInputs,
    DeltaMixer,
    DeltaSizes,
    DeltaState,
    check_parents,
)

PIECE = 64  # rows of a chain in one launch; a tree is never cut
REMEMBERED = 32  # plans and paths that are kept on the device: those of the requests of one step


class Places:
    """Plans and paths on the device; made once for all layers."""

    def __init__(self, kernel: int, device: torch.device) -> None:
        """Of a target whose convolutions see so many positions."""
        self._kernel, self._device = kernel, device
        self._plans: dict[Hashable, DeltaPlan] = {}
        self._paths: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._logs: dict[Hashable, DeltaLog] = {}  # shapes and types of logs

    def plan(self, parents: Sequence[int], rows: int) -> DeltaPlan:
        """Of rows behind their parents, padded to so many; padding stands behind the root."""
        key = (tuple(parents), rows)
        if key not in self._plans:
            if len(self._plans) >= REMEMBERED:
                self._plans.clear()
            padded = [*parents, *[-1] * (rows - len(parents))]
            windows: list[list[int]] = []
            for row in range(rows):
                window: list[int] = []
                at = row
                while len(window) < self._kernel:
                    # Behind the root come the state's inputs, the newest of them last in the window.
                    window.append(at + self._kernel - 1)
                    at = padded[at] if at >= 0 else at - 1
                windows.append(window[::-1])
            above = [parent + 1 for parent in padded]
            told = (torch.tensor(numbers, device=self._device) for numbers in (above, windows))
            self._plans[key] = DeltaPlan(next(told), next(told), torch.empty(0, device=self._device))
        return self._plans[key]

    def path(self, path: Sequence[int], rows: int) -> tuple[Tensor, Tensor]:
        """Rows to keep, padded to so many, and how many they are."""
        key = (tuple(path), rows)
        if key not in self._paths:
            if len(self._paths) >= REMEMBERED:
                self._paths.clear()
            padded = [*path, *[0] * (rows - len(path))]
            made = (torch.tensor(numbers, device=self._device) for numbers in (padded, [len(path)]))
            self._paths[key] = (next(made), next(made))
        return self._paths[key]

    def log(self, sizes: DeltaSizes, rows: int, like: Tensor) -> DeltaLog:
        """Buffers of a layer that `recur` fills; of the type of these inputs."""
        key = (rows, like.dtype)
        if key not in self._logs:
            self._logs[key] = new_log(sizes, 1, rows, like.dtype, torch.device("meta"))
        return DeltaLog(*(torch.empty_like(part, device=like.device) for part in self._logs[key]))


class KernelDeltaMixer:
    """The recurrent part of one layer, in the kernels of a recorded step."""

    def __init__(self, plain: DeltaMixer, kernels: DeltaKernels, places: Places) -> None:
        """Run what `plain` computes, with its weights."""
        self.plain, self._kernels, self._places = plain, kernels, places

    def verify(
        self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]
    ) -> tuple[Tensor, Committable]:
        """As in `DeltaForm`; chains longer than `PIECE` rows are run piece by piece."""
        count = len(inputs.raw)
        check_parents(parents, count)
        if count <= PIECE or list(parents) != list(range(-1, count - 1)):
            return self._block(root, inputs, parents)
        outputs, stashes, state = [], [], root
        for start in range(0, count, PIECE):
            piece = DeltaInputs(*(part[start : start + PIECE] for part in inputs))
            rows = len(piece.raw)
            output, stash = self._block(state, piece, range(-1, rows - 1))
            if start + rows < count:
                state = stash.after(state, range(rows))
            outputs.append(output)
            stashes.append(stash)
        return torch.cat(outputs), Pieces(tuple(stashes))

    def _block(
        self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]
    ) -> tuple[Tensor, KernelStash]:
        count = len(inputs.raw)
        rows = max(8, 1 << (count - 1).bit_length())  # few sizes: each is compiled once
        padded = inputs
        if rows > count:
            more = (part.new_zeros((rows - count, *part.shape[1:])) for part in inputs)
            padded = DeltaInputs(*(torch.cat(both) for both in zip(inputs, more, strict=True)))
        memory = DeltaMemory(root.memory[None], root.window[None])
        log = self._places.log(self.plain.sizes, rows, inputs.raw)
        found = self._kernels.recur(self.plain, padded, self._places.plan(parents, rows), memory, log, 0)
        return found[:count], KernelStash(log, self._kernels, self._places)


class KernelStash(NamedTuple):
    """`Committable` of the rows of one launch."""

    log: DeltaLog
    kernels: DeltaKernels
    places: Places

    def after(self, state: DeltaState, path: Sequence[int]) -> DeltaState:
        """As in `Committable`."""
        memory = DeltaMemory(state.memory[None].clone(), state.window[None].clone())
        self.kernels.replay(memory, self.log, *self.places.path(path, self.log.raw.shape[1]))
        return DeltaState(memory.memories[0], memory.windows[0])


class Pieces(NamedTuple):
    """`Committable` of a chain that was run piece by piece."""

    stashes: tuple[KernelStash, ...]

    def after(self, state: DeltaState, path: Sequence[int]) -> DeltaState:
        """As in `Committable`; the path is a beginning of the chain."""
        left = len(path)
        for stash in self.stashes:
            rows = min(left, PIECE)
            if rows:
                state = stash.after(state, range(rows))
            left -= rows
        return state
