"""Writes drafter folders: small integers for the wheel, plain tensors for other engines."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from reference_mechanisms.drafters import stored
from reference_mechanisms.drafters.integers import GROUP, Scaled, group_of, restore, scale
from reference_mechanisms.drafters.layouts import parse_layout
from reference_mechanisms.drafters.loading import KEPT, OFFSETS, Network, load_drafter
from reference_mechanisms.drafters.publishing import published
from reference_mechanisms.errors import DrafterError, TargetError
from reference_mechanisms.targets.checkpoint import SINGLE
from reference_mechanisms.targets.config import read_json

CONFIG = "config.json"
OWN = "specpilot_"  # fields of config.json that are ours
SMALL = 1 << 14  # a matrix of fewer weights is left as it is
CHOICES = (4, 8, 16, 32)
EXPORTED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Rounding(NamedTuple):
    """What storing did to a tensor."""

    name: str
    bits: int
    stored_bytes: int  # scales included
    largest: float  # difference of any weight
    share: float  # of the tensor's norm that the difference has


def store(
    network: Network,
    raw: Mapping[str, Any],
    folder: Path,
    bits: Mapping[str, int] | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> tuple[Rounding, ...]:
    """Write a drafter: config.json and model.safetensors, the same bytes for the same weights.

    Args:
        network: the trained drafter.
        raw: its config.json, see `publishing.published`; fields of ours may be added.
        folder: made if it is not there; the two files are replaced.
        bits: of the weights whose name a pattern matches ("markov_head.*"), the first pattern counting:
            4 or 8 are integers, 16 and 32 floats. Other matrices get 8, vectors and small matrices 32.
        inputs: what matrices are multiplied with, by name, see `scale`; makes 4 bits better.

    Returns:
        What it did to every tensor, in the order of their names.

    Raises:
        DrafterError: the config.json is of another network, a pattern matches nothing, or a weight is no
            number.
    """
    patterns = dict(bits or {})
    tensors = published_tensors(network)
    _check_patterns(patterns, tensors)
    found = parse_layout(raw, "config.json", tensors)
    if found != network.config:
        raise DrafterError(f"config.json: it describes {found}, the network is {network.config}")
    files: dict[str, Tensor] = {}
    told = []
    for name, tensor in sorted(tensors.items()):
        if not tensor.is_floating_point():
            files[name] = tensor
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise DrafterError(f"tensor {name} holds a weight that is no number; train again")
        parts, rounding = _stored(name, tensor, _bits(name, tensor, patterns), (inputs or {}).get(name))
        files |= parts
        told.append(rounding)
    declared = {stored.FIELD: stored.declaration()} if any(one.bits < 16 for one in told) else {}
    _write(folder, {**raw, **declared}, files)
    return tuple(told)


def largest_difference(network: Network, folder: Path) -> tuple[str, float]:
    """The tensor that a folder gives back worst, and by how much a weight of it differs.

    Raises:
        DrafterError: the folder cannot be loaded or is of another network.
    """
    theirs = published_tensors(load_drafter(folder, torch.float64, torch.device("cpu")))
    mine = published_tensors(network)
    if theirs.keys() != mine.keys() or any(theirs[name].shape != mine[name].shape for name in mine):
        raise DrafterError(f"{folder}: holds another network")
    return max(
        ((name, float((theirs[name].double() - mine[name].double()).abs().max())) for name in sorted(mine)),
        key=lambda found: found[1],
    )


def export(folder: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a drafter as plain tensors in the published layout that other engines read.

    Args:
        folder: a drafter in any known layout, stored in any known way.
        out: made if it is not there.
        dtype: of the tensors.

    Raises:
        DrafterError: the folder cannot be loaded, no published layout describes the network, or `out`
            holds a drafter already.
    """
    network = load_drafter(folder, torch.float32, torch.device("cpu"))
    try:
        raw = read_json(folder / CONFIG)
    except TargetError as error:
        raise DrafterError(str(error)) from None
    if (out / CONFIG).exists() or (out / SINGLE).exists():
        raise DrafterError(f"{out} holds a model already; give a new folder")
    inner = raw.get("transformer_layer_config", raw)
    positions = inner.get("max_position_embeddings")
    known = positions if isinstance(positions, int) else 8192
    kept = {name: value for name, value in raw.items() if name.startswith(OWN) and name != stored.FIELD}
    plain = published(network.config, known) | kept | {"dtype": str(dtype).removeprefix("torch.")}
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in published_tensors(network).items()
    }
    _write(out, plain, tensors)


def published_tensors(network: Network) -> dict[str, Tensor]:
    """The tensors of a network under the names that checkpoints store, on the CPU."""
    found = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    own = f"vocabulary.{OFFSETS}"
    if own in found:
        offsets = found.pop(own)
        kept = torch.zeros(network.config.vocab_size, dtype=torch.bool)
        kept[torch.arange(len(offsets)) + offsets] = True
        found |= {OFFSETS: offsets, KEPT: kept}
    return found


def _check_patterns(patterns: Mapping[str, int], tensors: Mapping[str, Tensor]) -> None:
    for pattern, bits in patterns.items():
        if bits not in CHOICES:
            raise DrafterError(f"`{pattern}`: {bits} bits; choose {', '.join(map(str, CHOICES))}")
        if not fnmatch.filter(tensors, pattern):
            raise DrafterError(f"`{pattern}` matches no tensor; there are {', '.join(sorted(tensors))}")


def _bits(name: str, tensor: Tensor, patterns: Mapping[str, int]) -> int:
    for pattern, bits in patterns.items():
        if fnmatch.fnmatchcase(name, pattern):
            return _possible(name, tensor, bits)
    return 8 if tensor.ndim == 2 and tensor.numel() >= SMALL else 32


def _possible(name: str, tensor: Tensor, bits: int) -> int:
    if bits < 16 and tensor.ndim != 2:
        raise DrafterError(f"tensor {name} is no matrix: give it 16 or 32 bits")
    if bits == 4 and group_of(tensor.shape[1]) is None:
        raise DrafterError(
            f"tensor {name} has {tensor.shape[1]} columns, no whole groups of {GROUP}: give it 8"
        )
    return bits


def _stored(
    name: str, tensor: Tensor, bits: int, inputs: Tensor | None
) -> tuple[dict[str, Tensor], Rounding]:
    if bits < 16:
        scaled = scale(tensor, 4 if bits == 4 else 8, inputs)
        parts = {name: scaled.integers, name + stored.SCALE: scaled.scales}
        back = restore(Scaled(*parts.values()), torch.float64)
    else:
        parts = {name: tensor.to(torch.float16 if bits == 16 else torch.float32)}
        back = parts[name].double()
        if not bool(torch.isfinite(back).all()):
            raise DrafterError(f"tensor {name} does not fit 16 bits; give it 32")
    difference = back - tensor.double()
    norm = float(tensor.double().norm())
    return parts, Rounding(
        name=name,
        bits=bits,
        stored_bytes=sum(part.numel() * part.element_size() for part in parts.values()),
        largest=float(difference.abs().max()),
        share=float(difference.norm()) / norm if norm else 0.0,
    )


def _write(folder: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Both files, each whole or as it was."""
    text = json.dumps(raw, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights, config = folder / f"{SINGLE}.partial", folder / f"{CONFIG}.partial"
        save_file(dict(tensors), weights, metadata={"format": "pt"})
        config.write_text(text, encoding="utf-8")
        weights.chmod(0o644)
        weights.replace(folder / SINGLE)
        config.replace(folder / CONFIG)
    except OSError as error:
        raise DrafterError(f"{folder} cannot be written: {error.strerror}; give another folder") from None
