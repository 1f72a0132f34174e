"""Steps on a GPU that nobody has measured here, from steps that were measured on another. Pure.

Weights: bytes over the bandwidth of the data sheet, times the share of it that the measured GPU reached. How
often a product reads its weights is what the kernels' planner says for the shared memory at hand. All else
(attention, norms, gates, sampling, gaps) are launches, not bytes: they keep their measured time a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.fused_block import layer_sizes
from reference_mechanisms.engine.fitting import BITS
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.kernels.weight12.schedule import BLACKWELL_RTX, HOPPER, split, variant
from reference_mechanisms.targets.config import LlamaConfig

Matrix = tuple[int, int]  # rows, columns


class Gpu(NamedTuple):
    """What a data sheet says of one."""

    name: str
    bytes_per_s: float
    shared_bytes: int  # that a CTA may have


MEASURED = Gpu("NVIDIA H200", 4.8e12, HOPPER)
PREDICTED = Gpu("RTX PRO 6000", 1.79e12, BLACKWELL_RTX)


class Costs(NamedTuple):
    """Of one step, as measured: share of the bandwidth that weights reach, seconds a layer of the rest."""

    reached: float
    layer_s: float


def target_matrices(config: LlamaConfig) -> list[Matrix]:
    """Products of one forward."""
    return [*_layers(config), (config.vocab_size, config.hidden_size)]


def drafter_matrices(config: BlockConfig) -> list[Matrix]:
    """Products of one draft, the target's head among them."""
    sizes = layer_sizes(config)
    context = (sizes.layers * 2 * sizes.kv_heads * sizes.head_dim, sizes.hidden_size)
    join = (sizes.hidden_size, len(config.taps or ()) * config.target_hidden)
    return [*_layers(sizes), context, join]


def read_bytes(matrices: Sequence[Matrix], bits: float, rows: int, gpu: Gpu) -> float:
    """Bytes of weights that a step of so many rows reads, each product as often as it takes rows in turns."""
    found = 0.0
    for shape in matrices:
        at_once = 8 * variant(split(*shape), rows, raw=bits == BITS["bf16"], room=gpu.shared_bytes).blocks
        found += -(-rows // at_once) * shape[0] * shape[1] * bits / 8
    return found


def costs_of(
    waterfall: Mapping[str, Any], part: str, matrices: Sequence[Matrix], layers: int, rows: int
) -> Costs:
    """Costs of a part ("verify", "draft") of a step that was measured in twelve bits.

    Raises:
        MechanismError: the record has no such part.
    """
    stages = {name: us for name, us in waterfall["stages"].items() if name.startswith(f"{part} ")}
    weights = stages.get(f"{part} weights")
    if not weights:
        raise MechanismError(f"the waterfall has no stage `{part} weights`; give the summary of engine bench")
    read = read_bytes(matrices, BITS["weight12"], rows, MEASURED)
    return Costs(
        read / (weights * 1e-6) / MEASURED.bytes_per_s, (sum(stages.values()) - weights) * 1e-6 / layers
    )


def step_s(costs: Costs, matrices: Sequence[Matrix], layers: int, rows: int, gpu: Gpu, bits: float) -> float:
    """Seconds of a step on a GPU, predicted."""
    weights = read_bytes(matrices, bits, rows, gpu) / (gpu.bytes_per_s * costs.reached)
    return weights + layers * costs.layer_s


def _layers(config: LlamaConfig) -> list[Matrix]:
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    layer = [
        (heads, config.hidden_size),
        (config.hidden_size, config.heads * config.head_dim),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ]
    return layer * config.layers


def predicted(
    summary: Mapping[str, Any],
    targets: Mapping[str, LlamaConfig],
    drafter: BlockConfig,
    gpu: Gpu = PREDICTED,
) -> list[dict[str, Any]]:
    """Steps of targets without drafts, and of the measured one with them, in milliseconds.

    Args:
        summary: of `engine bench` on the measured GPU, in twelve bits.
        targets: configurations by name; the summary's target among them.
        drafter: of that target.
        gpu: what to predict for.

    Raises:
        MechanismError: the summary holds no such run.
    """
    measured, rows = str(summary.get("target")), int(summary.get("drafts") or 0) + 1
    engines = summary.get("engines", {})
    plain, drafted = (engines.get(f"{name} weight12", {}) for name in ("ar", f"k{rows - 1}"))
    if measured not in targets or "waterfall" not in plain or "waterfall" not in drafted:
        raise MechanismError("the summary has no waterfalls of `ar weight12` and drafts of a known shape")
    config = targets[measured]
    of_target = target_matrices(config)
    alone = costs_of(plain["waterfall"], "verify", of_target, config.layers, 1)
    verify = costs_of(drafted["waterfall"], "verify", of_target, config.layers, rows)
    own, head, depth = drafter_matrices(drafter), of_target[-1:], len(drafter.reaches)
    draft = costs_of(drafted["waterfall"], "draft", [*own, *head], depth, rows)
    found = []
    for name, one in targets.items():
        for form in ("bf16", "weight12"):
            seconds = step_s(alone, target_matrices(one), one.layers, 1, gpu, BITS[form])
            found.append(_row(gpu, name, form, "ar", seconds))
    for form, its in (("bf16", "bf16"), ("weight12", "weight12"), ("weight12", "fp8")):
        seconds = step_s(verify, of_target, config.layers, rows, gpu, BITS[form])
        seconds += step_s(draft, own, depth, rows, gpu, BITS[its]) + step_s(
            draft._replace(layer_s=0.0), head, 0, rows, gpu, BITS[form]
        )
        told = f"k{rows - 1}" if form == its else f"k{rows - 1}, {its} drafter"
        found.append(_row(gpu, measured, form, told, seconds))
    return found


def _row(gpu: Gpu, target: str, weights: str, mode: str, seconds: float) -> dict[str, Any]:
    return {
        "predicted": True,
        "gpu": gpu.name,
        "target": target,
        "weights": weights,
        "mode": mode,
        "step_ms": round(1e3 * seconds, 2),
    }
