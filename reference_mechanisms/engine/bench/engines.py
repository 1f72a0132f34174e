"""The engines that are timed: a dummy target of a published shape, and a dummy DFlash beside it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.fused_block import FusedDrafter, layer_sizes, take_weights
from reference_mechanisms.drafters.layouts import parse_layout
from reference_mechanisms.engine.fitting import (
    BITS,
    DrafterFormat,
    Needs,
    WeightFormat,
    hold_deployment,
    layer_weights,
    needs_of,
)
from reference_mechanisms.engine.lanes import positions_of
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.kernels.step.delta import WORD
from reference_mechanisms.kernels.step.twin import WAYS, Ways
from reference_mechanisms.kernels.weight12.eight import EightMatrices
from reference_mechanisms.targets.config import read_config
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import Matrices, Source
from reference_mechanisms.targets.shapes import hybrid_shape_config, shape_config
from reference_mechanisms.weight12.raw_matrices import RawMatrices, load_streamed_llama
from reference_mechanisms.weight12.target import PackedMatrices, load_packed_llama

SUFFIX = "-dflash.json"
DTYPE = torch.bfloat16


class Sizes(NamedTuple):
    """Of the requests that an engine serves."""

    positions: int  # of a request, prompt and output
    rows: int  # of a verify step


def matrices_of(
    source: Source, weights: WeightFormat, device: torch.device, *, gates: bool = False
) -> Matrices:
    """Matrices of a checkpoint in a format; a row of their products is the same among any others."""
    made = PackedMatrices if weights == "weight12" else RawMatrices
    return made(source, device, gates=gates)


def drafter_matrices(
    source: Source, weights: DrafterFormat, device: torch.device, *, gates: bool = False
) -> Matrices:
    """The same of a drafter, which may be rounded to eight bits too."""
    match weights:
        case "int8" | "fp8":
            return EightMatrices(source, weights, DTYPE, device)
        case _:
            return matrices_of(source, weights, device, gates=gates)


def dummy_target(
    shape: str, weights: WeightFormat, seed: int, sizes: Sizes, device: torch.device, ways: Ways = WAYS
) -> LlamaTarget:
    """A target of a published shape with weights from a seed.

    Raises:
        TargetError: the shape is unknown, or the deployment does not fit the device.
    """
    config = shape_config(shape)
    needs = needs_of(config, weights, positions=positions_of(sizes.positions, sizes.rows), rows=sizes.rows)
    hold_deployment(needs, device, f"{shape} in {weights}")
    source = DummyCheckpoint(shape, seed, device)
    with torch.inference_mode():
        return LlamaTarget(
            config, source, DTYPE, device, matrices_of(source, weights, device, gates=ways.gates)
        )


def dummy_hybrid(
    shape: str, weights: WeightFormat, seed: int, positions: int, device: torch.device
) -> HybridTarget:
    """The same of a published hybrid, for requests of so many positions.

    Raises:
        TargetError: the shape is unknown, or the deployment does not fit the device.
    """
    config = hybrid_shape_config(shape)
    needs = needs_of(config, weights, positions=positions_of(positions, WORD), rows=WORD, slots=2)
    hold_deployment(needs, device, f"{shape} in {weights}")
    source = DummyCheckpoint(shape, seed, device)
    with torch.inference_mode():
        return HybridTarget(config, source, DTYPE, device, matrices_of(source, weights, device))


def folder_target(
    folder: Path, weights: WeightFormat, sizes: Sizes, device: torch.device, ways: Ways = WAYS
) -> LlamaTarget:
    """A target from a Hugging Face folder, by the same way.

    Raises:
        TargetError: the folder holds no dense target, or the deployment does not fit the device.
    """
    config = read_config(folder)
    needs = needs_of(config, weights, positions=positions_of(sizes.positions, sizes.rows), rows=sizes.rows)
    hold_deployment(needs, device, f"{folder} in {weights}")
    if weights == "weight12":
        return load_packed_llama(folder, DTYPE, device, gates=ways.gates)
    return load_streamed_llama(folder, device, gates=ways.gates)


def drafter_config(shape: str) -> BlockConfig:
    """The DFlash published for a target.

    Raises:
        DrafterError: none is known for this shape.
    """
    file = resources.files(__package__).joinpath("shapes", f"{shape}{SUFFIX}")
    if not file.is_file():
        raise DrafterError(f"no DFlash of known shape for {shape}")
    raw: dict[str, Any] = json.loads(file.read_text())
    found = parse_layout(raw, f"shape {shape}{SUFFIX}", ())
    if not isinstance(found, BlockConfig):
        raise DrafterError(f"shape {shape}{SUFFIX} is no DFlash")
    return found


def dummy_drafter(
    shape: str,
    target: LlamaTarget,
    weights: DrafterFormat,
    drafts: int,
    seed: int,
    ways: Ways = WAYS,
) -> FusedDrafter:
    """A DFlash of the published shape for a target, with weights from a seed.

    Raises:
        DrafterError: none is known, or it makes no drafts of this length.
        TargetError: it does not fit the device.
    """
    config, device = drafter_config(shape), target.device
    if not 1 <= drafts <= config.drafts:
        raise DrafterError(f"drafts is {drafts}; the blocks of this drafter give 1 to {config.drafts}")
    hold_deployment(drafter_needs(config, weights), device, f"the DFlash of {shape} in {weights}")
    source = DummyCheckpoint(f"{shape} DFlash", seed, device)
    with torch.inference_mode():
        matrices = drafter_matrices(source, weights, device, gates=ways.gates)
        found = take_weights(config, source, matrices, DTYPE, device)

    def head(rows: Tensor) -> Tensor:
        return target.logits(rows)

    return FusedDrafter(found, target.embed, head, drafts, ways)


def drafter_needs(config: BlockConfig, weights: DrafterFormat) -> Needs:
    """Bytes of a drafter; its cache and buffers are small beside the target's, and counted with those."""
    sizes = layer_sizes(config)
    context = sizes.layers * 2 * sizes.kv_heads * sizes.head_dim * sizes.hidden_size
    join = len(config.taps) * config.target_hidden * sizes.hidden_size
    numbers = sizes.layers * layer_weights(sizes) + context + join
    kept = int(numbers * BITS[weights] / 8)
    return Needs(weights=kept, cache=0, graphs=0, loading=12 * join)
