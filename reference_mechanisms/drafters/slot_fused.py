"""DFlash as a device program of few kernels, for many requests: `fused_block.py` over all slots."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import Drafted, Head
from reference_mechanisms.drafters.fused_block import Weights, rotations_of
from reference_mechanisms.drafters.slot_programs import Seats, SlotContext, blocks
from reference_mechanisms.drafters.static import bounds
from reference_mechanisms.kernels.slots.packing import Packed
from reference_mechanisms.kernels.step.twin import Seen


class FusedSlotBlocks:
    """`slot_programs.SlotDraftProgram` of a DFlash."""

    def __init__(
        self, weights: Weights, embed: Head, head: Head, drafts: int, slots: int, positions: int
    ) -> None:
        """Draft with these weights; arguments as of `slot_programs.SlotBlockProgram`."""
        self.drafts = drafts
        self._weights, self._embed, self._head = weights, embed, head
        config, sizes = weights.config, weights.config.sizes
        self._context = SlotContext(
            sizes, config.reaches, slots, positions + config.rows(drafts), weights.norm
        )
        self._rotations = rotations_of(config.rope, sizes.head_dim, self._context.capacity, weights.norm)

    @torch.inference_mode()
    def absorb(self, taps: Tensor, packed: Packed, following: Tensor, last: Tensor) -> None:
        """As in `SlotDraftProgram`."""
        del following, last
        weights, kernels, sizes = self._weights, self._context.kernels, self._weights.config.sizes
        nothing = Seen(packed.positions, packed.positions)  # nothing attends
        stand = self._context.stand(packed, nothing, 1, self._rotations)
        joined = kernels.ops(stand).norm(weights.join(taps), weights.context_norm)
        both = weights.context(joined).view(len(taps), -1, 2 * sizes.kv_heads, sizes.head_dim)
        kernels.keep(both, weights.context_norms, stand)

    @torch.inference_mode()
    def draft(self, seats: Seats, drafts: int) -> Drafted:
        """As in `SlotDraftProgram`."""
        weights, config, kernels = self._weights, self._weights.config, self._context.kernels
        sizes, rows, count = config.sizes, config.rows(drafts), len(seats.slots)
        packed = blocks(seats.slots, seats.starts, rows)
        ends = (seats.starts + rows)[packed.seats]

        def stand(reach: Reach) -> Seen:
            return bounds(packed.positions, ends, reach)

        ops = {
            reach: kernels.ops(self._context.stand(packed, stand(reach), rows, self._rotations))
            for reach in set(config.reaches)
        }
        ids = torch.full((count, rows), config.mask_token, device=seats.slots.device)
        ids[:, 0] = seats.anchors
        hidden = self._embed(ids.flatten())
        norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        normed = ops[config.reaches[0]].norm(hidden, weights.layers[0].input_norm)
        for number, (layer, next_norm) in enumerate(zip(weights.layers, norms, strict=True)):
            mine = ops[config.reaches[number]]
            qkv = layer.qkv(normed).view(len(normed), sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
            attended = mine.attend(number, qkv, layer.qk_norm)
            hidden, normed = mine.add_norm(hidden, layer.output(attended), layer.post_norm)
            hidden, normed = mine.add_norm(hidden, layer.down(layer.opened(normed, mine)), next_norm)
        predicting = normed.view(count, rows, -1)
        if not config.anchor_row:
            predicting = predicting[:, 1:]
        best = kernels.best(self._head(predicting.flatten(0, 1)))
        return Drafted(best.view(count, drafts))
