"""Loads a drafter folder: config.json and safetensors, each tensor used exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from reference_mechanisms.drafters.dflash import BlockConfig, DFlash
from reference_mechanisms.drafters.dflash2 import DFlash2, DFlash2Config
from reference_mechanisms.drafters.dspark import DSpark, DSparkConfig
from reference_mechanisms.drafters.eagle3 import Eagle3, Eagle3Config
from reference_mechanisms.drafters.layouts import Config, parse_layout
from reference_mechanisms.drafters.stored import StoredTensors, has_integers
from reference_mechanisms.errors import DrafterError, TargetError
from reference_mechanisms.targets.checkpoint import Checkpoint
from reference_mechanisms.targets.config import read_json

Network = DFlash | Eagle3

# Other names of the same tensors, and what the networks here call them.
SPELLINGS = (
    (re.compile(r"^logit_head\."), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
)
FUSED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
RECOMPUTED = ("rotary_emb.inv_freq",)
OFFSETS, KEPT = "d2t", "t2d"


def load_drafter(folder: Path, dtype: torch.dtype, device: torch.device) -> Network:
    """Load a drafter.

    Args:
        folder: with config.json and safetensors of a known layout.
        dtype: of the target.
        device: of the target.

    Raises:
        DrafterError: naming the file, field or tensor that does not fit.
    """
    where = folder / "config.json"
    try:
        with Checkpoint(folder) as checkpoint:
            raw = read_json(where)
            stored = StoredTensors(checkpoint, integers=has_integers(raw, str(where)))
            names = _names(folder, stored.names)
            network = build(parse_layout(raw, str(where), names))
            state = _state(network, stored, names, dtype)
            checkpoint.refuse_unused(RECOMPUTED)
    except TargetError as error:
        raise DrafterError(str(error)) from None
    network.load_state_dict(state, assign=True)
    return network.to(device).eval().requires_grad_(False)


def build(config: Config, device: str = "meta") -> Network:
    """The network of a configuration; on the default device without memory for its weights."""
    with torch.device(device):
        if isinstance(config, Eagle3Config):
            return Eagle3(config)
        if isinstance(config, DFlash2Config):
            return DFlash2(config)
        return DSpark(config) if isinstance(config, DSparkConfig) else DFlash(config)


def name_of(config: BlockConfig | Eagle3Config) -> str:
    """What an arm calls this drafter."""
    if isinstance(config, Eagle3Config):
        return "eagle3"
    if isinstance(config, DFlash2Config):
        return "dflash2"
    return "dspark" if isinstance(config, DSparkConfig) else "dflash"


def _names(folder: Path, stored: Iterable[str]) -> dict[str, str]:
    """Name here -> stored name."""
    found: dict[str, str] = {}
    for name in sorted(stored):
        here = name
        for pattern, replacement in SPELLINGS:
            here = pattern.sub(replacement, here)
        if here in found:
            raise DrafterError(f"{folder}: {name} and {found[here]} are the same tensor; give one of them")
        found[here] = name
    return found


def _state(
    network: Network, stored: StoredTensors, names: Mapping[str, str], dtype: torch.dtype
) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    wanted = network.state_dict()
    for name, place in wanted.items():
        if name == f"vocabulary.{OFFSETS}":
            state[name] = _offsets(network, stored.checkpoint, len(place))
        elif name not in state:
            state |= _tensors(name, wanted, stored, names, dtype)
    return state


def _tensors(
    name: str,
    wanted: Mapping[str, Tensor],
    stored: StoredTensors,
    names: Mapping[str, str],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """A tensor, or all parts of the fused one it is stored in."""
    for fused, parts in FUSED.items():
        part = next((part for part in parts if f".{part}." in name), fused)
        together = name.replace(part, fused)
        if part != fused and together in names:
            places = {name.replace(part, other): wanted[name.replace(part, other)] for other in parts}
            rows = [len(place) for place in places.values()]
            shape = (sum(rows), *wanted[name].shape[1:])
            pieces = torch.split(stored.take(names[together], shape, dtype), rows)
            return {at: piece.clone() for at, piece in zip(places, pieces, strict=True)}
    return {name: stored.take(names.get(name, name), tuple(wanted[name].shape), dtype)}


def _offsets(network: Network, checkpoint: Checkpoint, size: int) -> Tensor:
    """The vocabulary map, held against its twin where both are stored."""
    vocab = network.config.vocab_size
    offsets = checkpoint.take_exact(OFFSETS, (size,), "I64")
    ids = torch.arange(size) + offsets
    outside = bool(((ids < 0) | (ids >= vocab)).any())
    if outside or len(torch.unique(ids)) != size:
        raise DrafterError(
            f"{checkpoint.folder}: tensor {OFFSETS} does not map {size} draft ids to as many of {vocab} ids"
        )
    if KEPT in checkpoint:
        kept = checkpoint.take_exact(KEPT, (vocab,), "BOOL")
        if int(kept.sum()) != size or not bool(kept[ids].all()):
            raise DrafterError(
                f"{checkpoint.folder}: tensors {OFFSETS} and {KEPT} name different draft vocabularies"
            )
    return offsets
