"""Joins a loaded drafter with the target it drafts for, once, and makes a drafter for each batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.taps import check_taps, low_middle_high
from reference_mechanisms.drafters.trained import BlockDrafter, ChainDrafter, Drafting, Ends, TrainedDrafter
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError


class Bound(NamedTuple):
    """A drafter that fits its target."""

    network: Network
    taps: tuple[int, ...]
    ends: Ends

    def new_drafter(self, drafting: Drafting) -> TrainedDrafter:
        """A drafter for one batch."""
        if isinstance(self.network, Eagle3):
            return ChainDrafter(self.network, self.taps, self.ends, drafting)
        return BlockDrafter(self.network, self.ends, drafting)


def bind(network: Network, target: Target, where: str) -> Bound:
    """Hold a drafter against a target.

    Args:
        network: loaded for the target's device and type.
        target: the target.
        where: the drafter's folder, for error messages.

    Raises:
        DrafterError: the drafter is not one for this target.
    """
    config, its = network.config, target.config
    for field, own, wanted in (
        ("vocab_size", config.vocab_size, its.vocab_size),
        ("target_hidden_size", config.target_hidden, its.hidden_size),
        ("num_target_layers", config.target_layers or its.layers, its.layers),
    ):
        if own != wanted:
            raise DrafterError(f"{where}: `{field}` is {own}, the target's is {wanted}; give its own drafter")
    borrows = [
        name
        for name, held in (("embedding", network.embed_tokens), ("head", network.lm_head))
        if held is None
    ]
    if borrows and config.sizes.hidden != its.hidden_size:
        raise DrafterError(
            f"{where}: `hidden_size` is {config.sizes.hidden}, the target's {its.hidden_size}, and no "
            f"{borrows[0]} of its own is stored"
        )
    taps = config.taps if config.taps is not None else low_middle_high(its.layers)

    def head(rows: Tensor) -> Tensor:
        return target.logits(rows.flatten(0, -2)).reshape(*rows.shape[:-1], -1)

    return Bound(network, check_taps(taps, its.layers, where), Ends(target.embed, head))
