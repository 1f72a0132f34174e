"""Writes drafter folders as their exporters do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from reference_mechanisms.drafters.layouts import parse_layout
from reference_mechanisms.drafters.loading import Network, build
from tests.reference_mechanisms.drafters.networks import randomised

OFFSETS = "vocabulary.d2t"


def reference(raw: Mapping[str, Any], *stored: str, seed: int = 0) -> Network:
    """The network of a config.json with random weights, built without the loader."""
    config = parse_layout(raw, "config.json", stored)
    network = randomised(lambda: type(build(config))(config), seed)  # type: ignore[arg-type]
    if network.vocabulary is not None:
        size = len(network.vocabulary.d2t)
        kept = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))[:size]
        network.vocabulary.d2t.copy_(kept.sort().values - torch.arange(size))
    return network


def tensors_of(network: Network) -> dict[str, Tensor]:
    """Its tensors under their published names, with `t2d` where there is a map."""
    found = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if OFFSETS in found:
        found["d2t"] = found.pop(OFFSETS)
        found["t2d"] = torch.zeros(network.config.vocab_size, dtype=torch.bool)
        found["t2d"][torch.arange(len(found["d2t"])) + found["d2t"]] = True
    return found


def write(folder: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(dict(tensors), folder / "model.safetensors")
    return folder
