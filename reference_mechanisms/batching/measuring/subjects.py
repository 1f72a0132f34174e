"""What a table of costs is measured on: a loaded target with its drafter, or dummies of a published shape."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_mechanisms.batching.measuring.steps import Load, Subject
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.fused_block import take_weights
from reference_mechanisms.drafters.slot_drafting import slot_program
from reference_mechanisms.drafters.slot_fused import FusedSlotBlocks
from reference_mechanisms.drafters.slot_programs import SlotDraftProgram
from reference_mechanisms.engine.bench.engines import (
    Sizes,
    drafter_config,
    drafter_needs,
    dummy_target,
    matrices_of,
)
from reference_mechanisms.engine.fitting import WeightFormat, hold_deployment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.dummy import DummyCheckpoint


def loaded_subject(target: Target, bound: Bound | None, drafts: int) -> Subject:
    """A target with an arm's drafter; without one the drafts are those of the host.

    Args:
        target: of the arm.
        bound: its drafter, if that has weights.
        drafts: of a request, at most.
    """
    if bound is None:
        return Subject(target, None, (), drafts)

    def program(slots: int, positions: int) -> SlotDraftProgram:
        return slot_program(bound, drafts, slots, positions)

    return Subject(target, program, bound.taps, drafts)


def dummy_subject(
    shape: str, weights: WeightFormat, drafts: int, load: Load, seed: int, device: torch.device
) -> Subject:
    """A target of a published shape and the DFlash of that shape, with weights from a seed.

    Args:
        shape: of the target.
        weights: format of both.
        drafts: of a request; 0: no drafter.
        load: that the device must hold.
        seed: of the target's weights; the drafter's is the next.
        device: to measure on.

    Raises:
        TargetError: the shape is unknown or does not fit.
        DrafterError: no drafter of it is known, or it makes no drafts of this length.
    """
    positions = (load.slots + 1) * (load.context + 32 * (drafts + 1))
    target = dummy_target(shape, weights, seed, Sizes(positions, load.slots * (drafts + 1)), device)
    if not drafts:
        return Subject(target, None, (), 0)
    config = drafter_config(shape)
    if not 1 <= drafts <= config.drafts:
        raise DrafterError(f"--drafts is {drafts}; the blocks of this drafter give 1 to {config.drafts}")
    hold_deployment(drafter_needs(config, weights), device, f"the DFlash of {shape} in {weights}")
    source = DummyCheckpoint(f"{shape} DFlash", seed + 1, device)
    with torch.inference_mode():
        taken = take_weights(config, source, matrices_of(source, weights, device), target.dtype, device)

    def head(rows: Tensor) -> Tensor:
        return target.logits(rows)

    def program(slots: int, capacity: int) -> SlotDraftProgram:
        return FusedSlotBlocks(taken, target.embed, head, drafts, slots, capacity)

    return Subject(target, program, config.taps, drafts)
