"""Does a session fit its device? Told from config.json and the sizes of files, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from reference_mechanisms.arm_drafters import DrafterFolder
from reference_mechanisms.arms import ArmSettings
from reference_mechanisms.engine.fitting import Needs, WeightFormat, hold_deployment, needs_of
from reference_mechanisms.engine.lanes import positions_of
from reference_mechanisms.targets.config import LlamaConfig, parse_config, read_json
from reference_mechanisms.targets.hybrid_config import HybridConfig, parse_hybrid_config
from reference_mechanisms.targets.loading import is_dense_config

PACKED = "quantization_config"  # what packing adds to a config.json


class Deployed(NamedTuple):
    """What is to be loaded."""

    name: str
    folder: Path  # of the target
    weights: WeightFormat
    dtype: torch.dtype
    device: torch.device
    context: int  # positions of a request


def hold_session(
    deployed: Deployed, arms: Mapping[str, ArmSettings], drafters: Iterable[DrafterFolder]
) -> None:
    """Refuse a session that does not fit a CUDA device.

    Args:
        deployed: target and device.
        arms: of the session.
        drafters: of its arms.

    Raises:
        TargetError: with the bytes of weights, cache and graphs, and what is free; or the folder holds no
            target of a known architecture.
    """
    if deployed.device.type == "cuda":
        needs = session_needs(deployed, arms, drafters)
        hold_deployment(needs, deployed.device, f"deployment {deployed.name} with its arms")


def session_needs(
    deployed: Deployed, arms: Mapping[str, ArmSettings], drafters: Iterable[DrafterFolder]
) -> Needs:
    """What target, drafters, caches and steps take at least.

    Batches of arms without `batch_slots` are as large as they come, and first levels are made of the target:
    neither is counted.
    """
    config = _config(deployed.folder)
    rows = max(arm.rows for arm in arms.values())
    batches = [one.batching.slots for one in arms.values() if one.batching is not None]
    slots = max(batches, default=0)
    positions = slots * (deployed.context + rows)
    if not batches or any(arm.graphs for arm in arms.values()):
        positions += positions_of(deployed.context, rows)
    target = needs_of(
        config,
        deployed.weights,
        positions=positions,
        rows=max(1, slots) * rows,
        slots=slots + 1,
        number=deployed.dtype.itemsize,
    )
    folders = {one.path for one in drafters}
    kept = sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors"))
    return target + Needs(weights=kept, cache=0, graphs=0, loading=0)


def _config(folder: Path) -> LlamaConfig | HybridConfig:
    where = folder / "config.json"
    raw = {name: value for name, value in read_json(where).items() if name != PACKED}
    dense = is_dense_config(raw, str(where))
    return parse_config(raw, str(where)) if dense else parse_hybrid_config(raw, str(where))
