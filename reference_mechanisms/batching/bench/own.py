"""The reference engine of a bench: a dummy target of a published shape with its DFlash, steps recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from reference_mechanisms.batching.bench.resident import Parts
from reference_mechanisms.batching.costs import StepCosts, read_costs
from reference_mechanisms.batching.opening import Runners
from reference_mechanisms.batching.running import PackedRunner, Runner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import Recording, Trace
from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.loading import build
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.bench.engines import (
    Sizes,
    drafter_config,
    drafter_needs,
    dummy_target,
)
from reference_mechanisms.engine.fitting import WeightFormat, hold_deployment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.targets.dummy import DummyCheckpoint

PREFILL_ROWS = 256  # prompt rows of a step while others decode


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which engine to be.

    Attributes:
        shape: published shape of the target, with dummy weights.
        weights: format of the target's.
        traces: file of the request set.
        costs: file of the measured table; None: mechanisms that need it are off.
        slots: most requests at a time.
        seed: of weights and prompts.
    """

    shape: str
    weights: WeightFormat
    traces: str
    slots: int
    costs: str | None = None
    seed: int = 0


class Sized(NamedTuple):
    """Of what the runners are made."""

    slots: int
    capacity: int  # positions of a request
    drafts: int


def everything(slots: int, costs: Path | None) -> BatchSettings:
    """All mechanisms that chains have; those that need a table only with one."""
    told = costs is not None
    return BatchSettings(
        slots=slots,
        budget=told,
        adaptive=told,
        cohorts=told,
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
    capacity = max(trace.prompt + trace.tokens for trace in traces)
    sized = Sized(asked.slots, capacity, recording.drafts)
    rows = sized.slots * (1 + sized.drafts)
    sizes = Sizes(sized.slots * (capacity + sized.drafts + 1), rows)
    target = dummy_target(asked.shape, asked.weights, asked.seed, sizes, device)
    config = drafter_config(asked.shape)
    hold_deployment(drafter_needs(config, "bf16"), device, f"the DFlash of {asked.shape}")
    bound = dummy_network(config, target, asked.shape, asked.seed + 1)
    costs = None if asked.costs is None else read_costs(Path(asked.costs))[1]
    return parts_of(target, bound, sized, costs)


def dummy_network(config: BlockConfig, target: Target, shape: str, seed: int) -> Bound:
    """A DFlash for batches, with weights from a seed in the target's type.

    Raises:
        DrafterError: it is not one for the target.
    """
    source = DummyCheckpoint(f"{shape} DFlash", seed, target.device)
    network = build(config)
    state = {
        name: source.take(name, tuple(one.shape), target.dtype) for name, one in network.state_dict().items()
    }
    network.load_state_dict(state, assign=True)
    return bind(network.eval().requires_grad_(requires_grad=False), target, f"the DFlash of {shape}")


def parts_of(target: Target, bound: Bound, sized: Sized, costs: StepCosts | None) -> Parts:
    """An engine whose recorded steps are those of the most requests, whatever the load.

    Raises:
        MechanismError: more drafts than the drafter has.
    """
    if sized.drafts > bound.network.config.drafts:
        raise MechanismError(
            f"the traces are of {sized.drafts} drafts, and the drafter makes {bound.network.config.drafts}"
        )
    runners = Runners()

    def new_runner(settings: BatchSettings) -> Runner:
        most = sized.drafts + 1
        if settings.buckets:
            return runners.of(target, sized.slots, sized.capacity, most, costs, bound.taps)
        return PackedRunner(target, settings.slots, sized.capacity + most)

    drafting = Drafting(drafts=sized.drafts)
    return Parts(target, lambda: bound.new_drafter(drafting), sized.drafts, new_runner, costs)
