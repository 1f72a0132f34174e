"""Where training begins: weights of the target where shapes fit, instead of noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.training.teacher import Teacher, weight_of
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.training.teaching import AnyTeacher

STANDARD_DEVIATION = 0.02


@torch.no_grad()
def begin(model: DFlash | Eagle3, teacher: AnyTeacher, layers: Sequence[int], seed: int) -> None:
    """Set every weight.

    The final norm is the target's, because the head behind it is. Layer i starts as the target's layer
    `layers[i]`; without one, matrices are small noise; biases are zero.

    Args:
        model: to be trained, float32 on the CPU or a device.
        teacher: the target.
        layers: of the target, one for each of the drafter's; empty for noise.
        seed: of the noise.

    Raises:
        DrafterError: `layers` of a target whose layers are of another kind.
    """
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and not _is_zero_at_first(name):
            weight.copy_(torch.randn(weight.shape, generator=random) * STANDARD_DEVIATION)
        elif name.endswith(".bias"):
            weight.zero_()
    model.norm.weight.copy_(teacher.final_norm)
    if not isinstance(teacher, Teacher):
        if layers:
            raise DrafterError("`begin_with`: layers of a hybrid target are of another kind; leave it out")
        return
    for mine, number in zip(model.layers, layers, strict=False):
        _copy_layer(mine, teacher, number)


def _is_zero_at_first(name: str) -> bool:
    """Parts that do nothing until they have learnt something, or that set themselves up."""
    return any(
        part in name for part in ("markov_w2", "successor_codebook", "kernel_projection", "base_kernel")
    )


def _copy_layer(layer: nn.Module, teacher: Teacher, number: int) -> None:
    theirs, config = teacher.layers[number], teacher.config
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    queries, keys, values = torch.split(weight_of(theirs.qkv), [query, key, key])
    gate, up = weight_of(theirs.gate_up).chunk(2)
    for name, weight in (
        ("self_attn.q_proj", queries),
        ("self_attn.k_proj", keys),
        ("self_attn.v_proj", values),
        ("self_attn.o_proj", weight_of(theirs.output)),
        ("mlp.gate_proj", gate),
        ("mlp.up_proj", up),
        ("mlp.down_proj", weight_of(theirs.down)),
        ("input_layernorm", theirs.input_norm),
        ("hidden_norm", theirs.input_norm),
        ("post_attention_layernorm", theirs.post_norm),
    ):
        _copy(layer, f"{name}.weight", weight)


def _copy(layer: nn.Module, name: str, weight: Tensor) -> None:
    mine = dict(layer.named_parameters()).get(name)
    if mine is None:
        return
    if mine.shape == weight.shape:
        mine.copy_(weight)
    elif mine.ndim == 2 and mine.shape[0] == weight.shape[0] and mine.shape[1] == 2 * weight.shape[1]:
        mine[:, : weight.shape[1]].zero_()
        mine[:, weight.shape[1] :].copy_(weight)  # EAGLE-3 reads [embedding, feature]
