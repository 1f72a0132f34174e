"""Does a deployment fit the device? Answered from its sizes, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from reference_mechanisms.engine.graphs import free_bytes
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.config import LlamaConfig
from reference_mechanisms.targets.gated_delta import STATE_TYPE
from reference_mechanisms.targets.hybrid_config import HybridConfig

WeightFormat = Literal["bf16", "weight12"]
DrafterFormat = Literal["bf16", "weight12", "int8", "fp8"]  # a drafter may be rounded

BITS = {"bf16": 16.0, "weight12": 12.125, "int8": 8.0, "fp8": 8.0}  # a weight
PACKING = 12  # bytes a weight of the largest matrix, while it is packed
ARRANGING = 4  # and while bf16 is put in the order of the kernels
PARTS = 64  # positions of one part of an attention (`kernels.step.fused_attention`)
LIBRARIES = 512 << 20  # CUDA context, modules and workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes of a deployment on its device."""

    weights: int
    cache: int  # keys and values
    graphs: int  # buffers of the recorded steps, and what libraries keep
    loading: int  # beside the weights, while they are loaded

    @property
    def total(self) -> int:
        """At the worst moment: buffers are recorded after loading has ended."""
        return self.weights + max(self.loading, self.cache + self.graphs)

    def __add__(self, other: Needs) -> Needs:
        """Of two in one process, loaded one behind the other."""
        return Needs(
            weights=self.weights + other.weights,
            cache=self.cache + other.cache,
            graphs=self.graphs + other.graphs,
            loading=max(self.loading, other.loading),
        )


def layer_weights(config: LlamaConfig) -> int:
    """Numbers in the matrices of one decoder layer."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim * config.hidden_size
    return attention + 3 * config.hidden_size * config.intermediate_size


def needs_of(
    config: LlamaConfig | HybridConfig,
    weights: WeightFormat,
    *,
    positions: int,
    rows: int,
    slots: int = 1,
    number: int = 2,
) -> Needs:
    """What a target takes.

    Args:
        config: of the target.
        weights: format of its matrices; "bf16" are plain ones, of `number` bytes.
        positions: of the cache, all requests together.
        rows: of a step, all requests together.
        slots: requests, each with recurrent states of its own.
        number: bytes of a number outside the matrices.
    """
    table = config.vocab_size * config.hidden_size
    # In plain bf16 a head is a copy in the order of the kernels, tied or not; elsewhere a tied one shares.
    shares = config.tied_head and (weights == "weight12" or number > 2)
    if isinstance(config, HybridConfig):
        numbers, kept, full = hybrid_weights(config), 0, config.kinds.count("full_attention")
        delta = config.delta
        state = delta.value_heads * delta.key_dim * delta.value_dim * STATE_TYPE.itemsize
        states = slots * config.kinds.count("linear_attention") * state
    else:
        numbers = config.layers * layer_weights(config) + (table if shares else 2 * table)
        norms = 2 * config.hidden_size + (config.heads + config.kv_heads) * config.head_dim * config.qk_norm
        kept, full = number * (config.layers * norms + config.hidden_size), config.layers
        states = 0
    bits = BITS[weights] if weights == "weight12" else 8.0 * number
    cell = full * 2 * config.kv_heads * config.head_dim * number
    largest = max(table, 2 * config.hidden_size * config.intermediate_size)
    return Needs(
        weights=int(numbers * bits / 8) + kept,
        cache=positions * cell + states,
        graphs=LIBRARIES + rows * _row_bytes(config, full, positions, number),
        loading=largest * (PACKING if weights == "weight12" else ARRANGING),
    )


def hybrid_weights(config: HybridConfig) -> int:
    """Numbers in the matrices of a hybrid target."""
    delta, hidden = config.delta, config.hidden_size
    linear = (delta.channels + 2 * delta.values + 2 * delta.value_heads) * hidden
    full = (3 * config.heads + 2 * config.kv_heads) * config.head_dim * hidden
    tables = (1 if config.tied_head else 2) * config.vocab_size * hidden
    mixing = config.kinds.count("linear_attention") * linear + config.kinds.count("full_attention") * full
    return mixing + config.layers * 3 * hidden * config.intermediate_size + tables


def hold_deployment(needs: Needs, device: torch.device, what: str) -> None:
    """Refuse a deployment that does not fit a CUDA device, before it is loaded.

    Raises:
        TargetError: with the bytes of weights, cache and graphs, and what is free.
    """
    if device.type != "cuda":
        return
    check_fit(needs, free_bytes(device), what)


def check_fit(needs: Needs, free: int, what: str) -> None:
    """The same with the free bytes given.

    Raises:
        TargetError: as there.
    """
    if needs.total <= free:
        return
    raise TargetError(
        f"{what} does not fit: weights take {needs.weights} bytes, the cache {needs.cache}, graphs "
        f"{needs.graphs}, loading {needs.loading} for a while, {needs.total} at once, and {free} are free; "
        "take weight12, a shorter context or a smaller target"
    )


def _row_bytes(config: LlamaConfig | HybridConfig, full: int, positions: int, number: int) -> int:
    """Of the buffers of one row of a step, each kept for itself; `full` layers attend."""
    per_layer = number * (6 * config.hidden_size + 3 * config.intermediate_size)
    attention = 4 * config.heads * (config.head_dim + 2) * -(-positions // PARTS)
    return config.layers * per_layer + full * attention + 4 * config.vocab_size
