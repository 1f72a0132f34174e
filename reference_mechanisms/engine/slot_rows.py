"""A fixed number of rows of many requests through a target, laid out by numbers of the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.slots.choice import SlotKernels
from reference_mechanisms.kernels.slots.packing import Packed, SlotStand, chains, pack
from reference_mechanisms.targets.llama import LlamaTarget


class SlotRows:
    """Each row sees its own slot up to its own position; keys and values are written as it runs."""

    def __init__(
        self,
        target: LlamaTarget,
        cache: KVCache,
        *,
        rows: int,
        most: int,
        taps: Sequence[int],
        kernels: SlotKernels,
    ) -> None:
        """Allocate the constants.

        Args:
            target: the model.
            cache: its last slot is scratch, the others are of requests.
            rows: at once, padding among them.
            most: rows of a request.
            taps: layers whose output is wanted.
            kernels: of the forward.
        """
        self._target, self._taps, self._kernels = target, tuple(taps), kernels
        self._places, self._capacity, self._scratch = cache.places(), cache.capacity, cache.slots - 1
        self._rotations = target.rotations  # kept: a larger cache gives the target another table
        self._bucket, self._most = cache.bucket, most
        self._index = torch.arange(rows, device=target.device)

    def pack(self, slots: Tensor, starts: Tensor, counts: Tensor) -> Packed:
        """See `kernels.slots.packing.pack`."""
        return pack(slots, starts, counts, self._index, self._scratch, self._capacity)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, packed: Packed) -> Forward:
        """Run all rows.

        Args:
            ids: token ids of the rows, [rows]; any token for padding.
            packed: where they stand.
        """
        target = self._target
        stand = SlotStand(
            packed,
            chains(packed),
            self._rotations,
            self._places,
            target.config.norm_eps,
            self._most,
            self._bucket,
        )
        return target.run(ids, self._kernels.ops(stand), self._taps)
