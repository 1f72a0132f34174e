"""Cache of a hybrid target: keys and values of its attention layers, states of its recurrent ones.

A recurrent state cannot be cut back to a length, so a forward does not touch it. It leaves a stash of
its rows behind, and a commit replays the accepted ones into the state. The price is one more write of
the state's size per accepted row; a copy of the state per row would be about a hundred times the stash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.targets.gated_delta import (
    Committable,
    DeltaSizes,
    DeltaState,
    check_parents,
    empty_state,
)


@dataclass(frozen=True, slots=True)
class _Pending:
    """Rows of one slot that ran and are not committed."""

    parents: Sequence[int]
    stashes: list[Committable] = field(default_factory=list)  # one a recurrent layer, in order


@dataclass(frozen=True, slots=True)
class _Mark:
    """A slot's states at a mark, and what was committed since."""

    memories: Tensor  # [layers, ...]
    windows: Tensor
    committed: list[tuple[_Pending, tuple[int, ...]]] = field(default_factory=list)  # with their paths


class HybridCache:
    """Sequences of `slots` requests."""

    def __init__(self, kv: KVCache, sizes: DeltaSizes, layers: int) -> None:
        """Allocate the states.

        Args:
            kv: of the attention layers; lengths are kept there.
            sizes: of the recurrent layers.
            layers: recurrent ones.
        """
        self.kv = kv
        self.slots = kv.slots
        self.capacity = kv.capacity
        self._layers = layers
        one = empty_state(sizes, kv.dtype, kv.device)
        shape = (kv.slots, layers)
        self._memories = one.memory.expand(*shape, *one.memory.shape).clone()
        self._windows = one.window.expand(*shape, *one.window.shape).clone()
        self._pending: dict[int, _Pending] = {}
        self._marks: dict[int, _Mark] = {}

    def length(self, slot: int) -> int:
        """Committed positions of a slot."""
        return self.kv.length(slot)

    def clear(self, slot: int) -> None:
        """Begin a new sequence, from an empty state."""
        self._pending.pop(slot, None)
        self._marks.pop(slot, None)
        self._memories[slot].zero_()
        self._windows[slot].zero_()
        self.kv.clear(slot)

    def copy_states(self, source: HybridCache, slot: int) -> None:
        """Take the recurrent states of a slot over from a cache of the same layers, rounded to this one's."""
        self._memories[slot].copy_(source._memories[slot])
        self._windows[slot].copy_(source._windows[slot])

    def open(self, rows: Rows) -> None:
        """Begin a forward: what its slots ran before and did not commit is forgotten.

        Raises:
            ValueError: a slot stands in two segments, rows do not begin at its length, or parents
                are no tree.
        """
        opened: dict[int, _Pending] = {}
        first = 0
        for slot, start, count in rows.segments:
            if slot in opened:
                raise ValueError(f"slot {slot} has two segments; recurrent rows need one chain or tree")
            if start != self.length(slot):
                raise ValueError(
                    f"slot {slot}: rows begin at position {start}, but the recurrent state stands behind "
                    f"{self.length(slot)}; commit first"
                )
            parents = range(-1, count - 1) if rows.parents is None else rows.parents[first : first + count]
            check_parents(parents, count)
            opened[slot] = _Pending(parents)
            first += count
        self._pending.update(opened)

    def parents(self, slot: int) -> Sequence[int]:
        """Of each row of the open forward."""
        return self._pending[slot].parents

    def state(self, slot: int, layer: int) -> DeltaState:
        """The committed state of a recurrent layer, counted among its kind; not to be written to."""
        return DeltaState(self._memories[slot, layer], self._windows[slot, layer])

    def leave(self, slot: int, stash: Committable) -> None:
        """Keep the stash of the next recurrent layer of the open forward."""
        self._pending[slot].stashes.append(stash)

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows of the slot's last forward; the others are forgotten.

        Raises:
            ValueError: there are not so many, or they are no chain.
        """
        self.commit_path(slot, range(kept))

    @torch.inference_mode()
    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of rows of the slot's last forward; the others are forgotten.

        Args:
            slot: of the cache.
            path: rows, each the parent of the next, the first one's being the committed state. Empty
                keeps nothing.

        Raises:
            ValueError: they are no such path.
        """
        pending = self._pending.get(slot, _Pending(()))
        if len(path) > len(pending.parents):
            raise ValueError(f"slot {slot}: cannot keep {len(path)} rows of {len(pending.parents)}")
        before = -1
        for row in path:
            if not 0 <= row < len(pending.parents) or pending.parents[row] != before:
                raise ValueError(f"slot {slot}: row {row} does not follow row {before}")
            before = row
        if path and len(pending.stashes) != self._layers:
            raise ValueError(f"slot {slot}: its last forward did not end")
        self._pending.pop(slot, None)
        if not path:
            return
        self._replay(slot, pending, path)
        if slot in self._marks:
            self._marks[slot].committed.append((pending, tuple(path)))
        self.kv.gather(slot, path)
        self.kv.commit(slot, len(path))

    def mark(self, slot: int) -> None:
        """What is committed from here on may be taken back: at the price of a copy of the states."""
        self._marks[slot] = _Mark(self._memories[slot].clone(), self._windows[slot].clone())
        self.kv.mark(slot)

    @torch.inference_mode()
    def rewind(self, slot: int, kept: int) -> None:
        """Take back all but the first `kept` rows that were committed since `mark`; the mark is gone.

        The states become those of the mark, and the rows that stay are replayed into them: bitwise what
        they were behind these rows.

        Raises:
            ValueError: there is no mark, or there are not so many rows.
        """
        self.kv.rewind(slot, kept)
        mark = self._marks.pop(slot)
        self._pending.pop(slot, None)
        self._memories[slot], self._windows[slot] = mark.memories, mark.windows
        for pending, path in mark.committed:
            if path[:kept]:
                self._replay(slot, pending, path[:kept])
            kept -= len(path[:kept])

    def _replay(self, slot: int, pending: _Pending, path: Sequence[int]) -> None:
        for layer, stash in enumerate(pending.stashes):
            memory, window = stash.after(self.state(slot, layer), path)
            self._memories[slot, layer] = memory
            self._windows[slot, layer] = window
