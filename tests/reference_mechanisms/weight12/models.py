"""Small model folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from reference_mechanisms.targets.checkpoint import INDEX, SINGLE
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits


def tensor(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


def write_model(folder: Path, shards: int = 1, seed: int = 0) -> Path:
    """A folder with a matrix and a norm in each shard, and what else such folders have."""
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = SINGLE if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        tensors = {
            f"layers.{number}.up.weight": tensor(samples.one_spread_row((256, 320), seed + number)),
            f"layers.{number}.norm.weight": tensor(samples.normal((320,), seed + number)),
        }
        if number == 0:
            tensors["small.weight"] = tensor(samples.normal((4, 320), seed))
        save_file(tensors, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"],\n\t"name": "é"}')
    (folder / "tokenizer.json").write_bytes(bytes(range(256)))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
