"""A fixed number of rows of one request through a hybrid target, at a place that only the device knows.

The attention layers are those of `static_rows.py` and `static_tree.py`, with the rotation done before. The
recurrent ones run from the committed states, and leave a log; `keep` replays of it what a step accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.step.choice import Kernels
from reference_mechanisms.kernels.step.delta import (
    DeltaKernels,
    DeltaLog,
    DeltaPlan,
    chain_plan,
    new_log,
    new_memory,
    tree_plan,
)
from reference_mechanisms.kernels.step.delta_form import KernelDeltaMixer
from reference_mechanisms.kernels.step.tree_choice import (
    delta_kernels_for,
    dense_delta_kernels_for,
    tree_kernels_for,
)
from reference_mechanisms.kernels.step.trees import TreeStand, TreeTurn
from reference_mechanisms.kernels.step.twin import Seen, Stand
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaMixer
from reference_mechanisms.targets.hybrid import HybridTarget, Mixing
from reference_mechanisms.targets.layer_ops import LayerOps


class HybridLaneCache:
    """Keys, values and states of the one request that lanes decode; `engine.target.Cache`."""

    def __init__(self, target: HybridTarget, capacity: int, kernels: DeltaKernels) -> None:
        """Allocate.

        Args:
            target: the model.
            capacity: positions.
            kernels: of the recurrent layers.
        """
        self.kv: KVCache = target.new_cache(1, capacity).kv
        self.slots, self.capacity = 1, self.kv.capacity
        config = target.config
        layers = config.kinds.count("linear_attention")
        self.memory = new_memory(config.delta, layers, target.dtype, target.device)
        self._kernels = kernels
        self._log: DeltaLog | None = None

    def length(self, slot: int) -> int:
        """Committed positions."""
        return self.kv.length(slot)

    def clear(self, slot: int) -> None:
        """Begin a new sequence, from empty states."""
        self.kv.clear(slot)
        self._log = None
        for part in self.memory:
            part.zero_()

    def ran(self, log: DeltaLog) -> None:
        """The rows of this log ran behind what is committed, and may be committed."""
        self._log = log

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows of the last forward."""
        self.commit_path(slot, range(kept))

    @torch.inference_mode()
    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of rows of the last forward; it was a tree, or a chain and they are its first.

        Raises:
            ValueError: nothing ran, or it was committed already.
        """
        if not path:
            return
        if self._log is None:
            raise ValueError(f"{len(path)} rows to commit, and none ran since the last commit")
        log, self._log = self._log, None
        device = log.raw.device
        rows, kept = torch.tensor(list(path), device=device), torch.tensor([len(path)], device=device)
        self._kernels.replay(self.memory, log, rows, kept)
        self.kv.gather(slot, path)
        self.kv.commit(slot, len(path))


class _HybridRows:
    """What chains and trees share."""

    def __init__(
        self,
        target: HybridTarget,
        cache: HybridLaneCache,
        rows: int,
        taps: Sequence[int],
        kernels: Kernels,
        *,
        dense: bool = False,
    ) -> None:
        self._target, self._cache, self._taps, self._kernels = target, cache, tuple(taps), kernels
        config = target.config
        self._places = cache.kv.window(0, 0, cache.kv.capacity)
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        self._straight = target.straight_rotations(cache.kv.capacity)
        chosen = dense_delta_kernels_for if dense else delta_kernels_for
        self._delta, self._dense = chosen(target.device, target.dtype), dense
        layers = config.kinds.count("linear_attention")
        self._log = new_log(config.delta, layers, rows, target.dtype, target.device)

    def leave(self) -> None:
        """The rows that ran may be committed by the host."""
        self._cache.ran(self._log)

    def _run(self, ids: Tensor, positions: Tensor, ops: LayerOps, plan: DeltaPlan) -> Forward:
        def attend(layer: int, qkv: Tensor) -> Tensor:
            return ops.attend(layer, qkv, None)

        def recur(layer: int, mixer: DeltaMixer | KernelDeltaMixer, inputs: DeltaInputs) -> Tensor:
            plain = mixer.plain if isinstance(mixer, KernelDeltaMixer) else mixer
            return self._delta.recur(plain, inputs, plan, self._cache.memory, self._log, layer)

        return self._target.run(ids, Mixing(self._rotations[positions], attend, recur), self._taps)


class HybridChainRows(_HybridRows):
    """Rows one behind the other; as `static_rows.StaticRows`."""

    def __init__(
        self,
        target: HybridTarget,
        cache: HybridLaneCache,
        rows: int,
        taps: Sequence[int],
        kernels: Kernels,
        *,
        dense: bool = False,
    ) -> None:
        """Allocate the constants; arguments as of `StaticRows`, and whether layers go in the WY form."""
        super().__init__(target, cache, rows, taps, kernels, dense=dense)
        self._behind = torch.arange(rows + 1, device=target.device)
        self._low = torch.zeros(rows, dtype=torch.int64, device=target.device)
        self._plan = chain_plan(rows, target.config.delta.kernel, target.device, bits=dense)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, start: Tensor) -> Forward:
        """Run all rows; arguments as of `StaticRows`."""
        places = start + self._behind
        eps = self._target.config.norm_eps
        stand = Stand(places[:-1], Seen(self._low, places[1:]), self._straight, self._places, eps)
        return self._run(ids, places[:-1], self._kernels.ops(stand), self._plan)

    @torch.inference_mode()
    def keep(self, accepted: Tensor) -> None:
        """Make the anchor and the accepted rows part of the states; as `StaticRows.keep`."""
        self._delta.replay(self._cache.memory, self._log, self._behind[:-1], accepted + 1)


class HybridTreeRows(_HybridRows):
    """Rows of a tree; as `static_tree.DenseTreeRows`."""

    @torch.inference_mode()
    def __call__(self, turn: TreeTurn) -> Forward:
        """Run all rows of a turn that is laid out."""
        config = self._target.config
        stand = TreeStand(turn.start, turn.depths, turn.paths, self._straight, self._places, config.norm_eps)
        kernel, bits = config.delta.kernel, self._dense
        plan = tree_plan(turn.depths, turn.paths, turn.parents, kernel, bits=bits)
        ops = tree_kernels_for(self._kernels).ops(stand)
        return self._run(turn.ids, turn.start + turn.depths, ops, plan)

    @torch.inference_mode()
    def keep(self, turn: TreeTurn) -> None:
        """Bring the accepted path together in the cache, and into the states."""
        tree_kernels_for(self._kernels).move(self._places, turn)
        self._delta.replay(self._cache.memory, self._log, turn.path, turn.accepted + 1)
