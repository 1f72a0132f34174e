"""The reference engine of a bench: a dummy target of a published shape with its DFlash, steps recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from reference_mechanisms.batching.bench.replaying import ReplayedSlots
from reference_mechanisms.batching.bench.resident import Driving, Parts, Trees
from reference_mechanisms.batching.bench.running import EVERYTHING
from reference_mechanisms.batching.bench.shapes import Shape, shape_of
from reference_mechanisms.batching.bench.singly import Singly
from reference_mechanisms.batching.costs import StepCosts, read_costs
from reference_mechanisms.batching.opening import Runners
from reference_mechanisms.batching.running import PackedRunner, Runner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import Recording, Trace
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.fused_block import FusedDrafter, Weights, take_weights
from reference_mechanisms.drafters.slot_drafting import SlotDrafter, SlotPrograms, SlotSizes
from reference_mechanisms.drafters.slot_fused import FusedSlotBlocks
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.bench.engines import DTYPE, drafter_needs, matrices_of
from reference_mechanisms.engine.fitting import Needs, WeightFormat, hold_deployment, needs_of
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.targets.config import LlamaConfig
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget

PREFILL_ROWS = 256  # prompt rows of a step while others decode


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which engine to be.

    Attributes:
        shape: of target and drafter, `shapes.SHAPES`; weights are dummies.
        weights: format of the target's.
        traces: file of the request set.
        costs: file of the measured table; None: mechanisms that need it are off.
        slots: most requests at a time.
        seed: of weights and prompts.
        variant: mechanisms that are on where a request set does not say.
        tree: nodes of draft trees; 0: only chains are served.
    """

    shape: str
    weights: WeightFormat
    traces: str
    slots: int
    costs: str | None = None
    seed: int = 0
    variant: str = EVERYTHING
    tree: int = 0


class Sized(NamedTuple):
    """Of what the runners are made."""

    slots: int
    capacity: int  # positions of a request
    drafts: int


def everything(slots: int, costs: Path | None) -> BatchSettings:
    """All mechanisms that chains have.

    Args:
        slots: requests at a time.
        costs: file of the measured table; None: what needs one is off.
    """
    told = costs is not None
    return BatchSettings(
        slots=slots,
        budget=told,
        adaptive=told,
        cohorts=told and slots > 1,
        prefill_rows=PREFILL_ROWS,
        buckets=True,
        costs=costs,
    )


def own_parts(asked: Asked, recording: Recording, traces: Sequence[Trace], device: torch.device) -> Parts:
    """The engine on a device.

    Raises:
        TargetError: the shape is unknown or does not fit.
        DrafterError: no drafter of this shape is known.
        CostError: the table cannot be used.
    """
    shape = shape_of(asked.shape)
    sized = Sized(asked.slots, max(one.prompt + one.tokens for one in traces), recording.drafts)
    needs = target_needs(shape, asked.weights, sized) + drafter_needs(shape.block, asked.weights)
    hold_deployment(needs, device, f"{asked.shape} with its drafter in {asked.weights}")
    hold_drafts(shape.block, sized)
    target = dummy_target(shape, asked, device)
    costs = None if asked.costs is None else read_costs(Path(asked.costs))[1]
    source = DummyCheckpoint(f"{asked.shape} DFlash", asked.seed + 1, device)
    with torch.inference_mode():
        matrices = matrices_of(source, asked.weights, device)
        weights = take_weights(shape.block, source, matrices, target.dtype, device)
    parts = recorded_parts(target, weights, sized, costs, asked.tree)
    if isinstance(target, HybridTarget):
        return parts._replace(singly=recorded_single(target, weights, sized))
    return parts


def hold_drafts(config: BlockConfig, sized: Sized) -> None:
    """Hold that a drafter makes as many drafts as the traces have.

    Raises:
        MechanismError: it does not.
    """
    if sized.drafts > config.drafts:
        raise MechanismError(f"the traces are of {sized.drafts} drafts; the drafter makes {config.drafts}")


def dummy_target(shape: Shape, asked: Asked, device: torch.device) -> LlamaTarget | HybridTarget:
    """A target with weights from a seed."""
    config, source = shape.target, DummyCheckpoint(asked.shape, asked.seed, device)
    with torch.inference_mode():
        matrices = matrices_of(source, asked.weights, device)
        if isinstance(config, LlamaConfig):
            return LlamaTarget(config, source, DTYPE, device, matrices)
        return HybridTarget(config, source, DTYPE, device, matrices)


def target_needs(shape: Shape, weights: WeightFormat, sized: Sized) -> Needs:
    """Bytes of a target with the caches of all requests."""
    config, rows = shape.target, sized.slots * (1 + sized.drafts)
    positions, slots = sized.capacity + sized.drafts + 1, sized.slots + 1  # and scratch
    return needs_of(config, weights, positions=slots * positions, rows=rows, slots=slots)


def recorded_parts(
    target: LlamaTarget | HybridTarget,
    weights: Weights,
    sized: Sized,
    costs: StepCosts | None,
    nodes: int = 0,
) -> Parts:
    """An engine whose steps and drafts are recorded for the most requests, and serve every load.

    Args:
        target: the model.
        weights: of the drafter.
        sized: of the batch.
        costs: whose shapes are recorded.
        nodes: of draft trees; 0: only chains are served.
    """
    config = weights.config

    def head(rows: Tensor) -> Tensor:
        return target.logits(rows)

    program = FusedSlotBlocks(weights, target.embed, head, sized.drafts, sized.slots, sized.capacity)
    width = len(config.taps) * target.config.hidden_size
    programs = SlotPrograms(
        program, SlotSizes(sized.slots, sized.capacity, width), weights.norm, Graphs(target.device)
    )
    runners, drafting = Runners(), Drafting(drafts=sized.drafts)

    def new_runner(settings: BatchSettings) -> Runner:
        most = sized.drafts + 1
        if settings.buckets:
            return runners.of(target, sized.slots, sized.capacity, most, costs, config.taps)
        return PackedRunner(target, settings.slots, sized.capacity + most)

    def new_drafter() -> SlotDrafter:
        return SlotDrafter(programs, config.taps, drafting)

    replayed = ReplayedSlots(program, sized.slots, sized.capacity, target.config.vocab_size, target.device)
    replaying = SlotPrograms(replayed, programs.sizes, weights.norm, Graphs(target.device))

    def driving() -> Driving:
        drafter, most = SlotDrafter(replaying, config.taps, drafting), sized.drafts + 1
        return Driving(replayed, runners.lane(target, sized.slots, sized.capacity, most, costs, drafter))

    def tree_runner(settings: BatchSettings) -> Runner:
        del settings  # made for the most requests, as chains' are
        sizes = (sized.slots, sized.capacity, nodes + 1)
        return runners.of(target, *sizes, costs, config.taps, sized.drafts)

    trees = Trees(nodes, tree_runner) if nodes else None
    return Parts(target, new_drafter, sized.drafts, new_runner, costs, driving=driving, trees=trees)


def recorded_single(target: Target, weights: Weights, sized: Sized) -> Singly:
    """Recorded steps of one request at a time; arguments as of `recorded_parts`."""
    drafter = FusedDrafter(weights, target.embed, target.logits, sized.drafts)
    return Singly(target, drafter, sized.capacity, sized.drafts)
