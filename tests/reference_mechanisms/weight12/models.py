"""Small model folders, and packed files by a wrong writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from reference_mechanisms.targets.checkpoint import INDEX, SINGLE
from reference_mechanisms.weight12.digests import BLANK, SEAL, sealed
from reference_mechanisms.weight12.tensorfile import METADATA, PREFIX
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.samples import Bits

Header = dict[str, dict[str, object]]


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


def resealed(data: bytes, path: Path, change: Callable[[Header], None]) -> Path:
    """The file with another header, its seal right."""
    length = int.from_bytes(data[:PREFIX], "little")
    header = json.loads(data[PREFIX : PREFIX + length])
    header[METADATA][SEAL] = BLANK
    change(header)
    text = sealed(header, 64, PREFIX)
    path.write_bytes(len(text).to_bytes(PREFIX, "little") + text + data[PREFIX + length :])
    return path
