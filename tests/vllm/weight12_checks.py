"""The plug-in's methods on vLLM's own layers, ranks pretended: ``python -m tests.vllm.weight12_checks``.

A process of its own: vLLM warns when it is imported, and tests take warnings for errors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers import linear, vocab_parallel_embedding
from vllm.model_executor.layers.quantization import get_quantization_config

from reference_mechanisms.weight12 import product
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.errors import CallError, WeightError
from reference_mechanisms.weight12.layout import VERSION
from reference_mechanisms.weight12.onload import packed_at_load
from reference_mechanisms.weight12.planes import Planes
from reference_mechanisms.weight12.plugin import register
from reference_mechanisms.weight12.plugin.gathering import Known
from reference_mechanisms.weight12.plugin.methods import PackedMethod, PackingMethod
from tests.reference_mechanisms.weight12 import samples
from tests.reference_mechanisms.weight12.plugin_samples import known
from tests.reference_mechanisms.weight12.samples import Bits

BF16 = torch.bfloat16
Make = Callable[[Any], Any]

HEADS = {"q": 512, "k": 128, "v": 128}
LAYERS: dict[str, tuple[Make, dict[Any, tuple[int, int]]]] = {
    "qkv": (
        lambda config: linear.QKVParallelLinear(
            320, 64, 8, 2, bias=False, params_dtype=BF16, quant_config=config, prefix="qkv"
        ),
        {part: (rows, 320) for part, rows in HEADS.items()},
    ),
    "gate_up": (
        lambda config: linear.MergedColumnParallelLinear(
            320, [192, 192], bias=False, params_dtype=BF16, quant_config=config, prefix="gate_up"
        ),
        {0: (192, 320), 1: (192, 320)},
    ),
    "fused on disk": (
        lambda config: linear.MergedColumnParallelLinear(
            320, [192, 192], bias=False, params_dtype=BF16, quant_config=config, prefix="gate_up"
        ),
        {None: (384, 320)},
    ),
    "column": (
        lambda config: linear.ColumnParallelLinear(
            320, 128, bias=False, params_dtype=BF16, quant_config=config, prefix="column"
        ),
        {None: (128, 320)},
    ),
    "row": (
        lambda config: linear.RowParallelLinear(
            512, 96, bias=False, params_dtype=BF16, quant_config=config, prefix="row"
        ),
        {None: (96, 512)},
    ),
    "replicated": (
        lambda config: linear.ReplicatedLinear(
            320, 96, bias=False, params_dtype=BF16, quant_config=config, prefix="same"
        ),
        {None: (96, 320)},
    ),
    "embedding": (
        lambda config: vocab_parallel_embedding.VocabParallelEmbedding(
            100, 320, params_dtype=BF16, quant_config=config, prefix="embed"
        ),
        {None: (100, 320)},
    ),
    "head": (
        lambda config: vocab_parallel_embedding.ParallelLMHead(
            100, 320, params_dtype=BF16, quant_config=config, prefix="head"
        ),
        {None: (100, 320)},
    ),
}


@contextmanager
def rank_of(rank: int, ranks: int) -> Iterator[None]:
    """Let layers made here believe in other ranks."""
    with (
        patch.object(linear, "get_tensor_model_parallel_rank", lambda: rank),
        patch.object(linear, "get_tensor_model_parallel_world_size", lambda: ranks),
        patch.object(vocab_parallel_embedding, "get_tensor_model_parallel_rank", lambda: rank),
        patch.object(vocab_parallel_embedding, "get_tensor_model_parallel_world_size", lambda: ranks),
    ):
        yield


def config_of(packed: dict[str, Known]) -> Any:
    config = get_quantization_config("weight12")(packed=True)
    config.known = packed
    return config


def load(param: Any, tensor: torch.Tensor, part: Any) -> None:
    param.weight_loader(param, tensor, *(() if part is None else (part,)))


def filled(name: str, rank: int, ranks: int) -> tuple[Any, Any]:
    """The packed layer and its bf16 twin, both loaded by vLLM's loaders."""
    make, parts = LAYERS[name]
    weights = {part: samples.one_spread_row(shape, 7 + n) for n, (part, shape) in enumerate(parts.items())}
    arrays = {part: encode(bits) for part, bits in weights.items()}
    with rank_of(rank, ranks):
        packed = make(config_of({digest: one for p in arrays.values() for digest, one in known(p).items()}))
        twin = make(None)
    for part, bits in weights.items():
        load(twin.weight, torch.from_numpy(bits.copy()).view(BF16), part)
        for suffix, array in arrays[part].arrays():
            tensor = torch.from_numpy(array.copy())
            load(
                getattr(packed, f"weight_{suffix}"), tensor.view(BF16) if suffix == "rawval" else tensor, part
            )
    return packed, twin


def patterns(weight: torch.Tensor) -> Bits:
    return np.asarray(weight.detach().view(torch.uint16).numpy())


def check_ranks() -> None:
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            for name in LAYERS:
                packed, twin = filled(name, rank, ranks)
                assert isinstance(packed.quant_method, PackedMethod), name
                rows, columns = packed.packed_shape
                assert (rows, columns) == tuple(twin.weight.shape), name
                found = packed.gathering.finish(rows, columns, torch.device("cpu"))
                assert isinstance(found, Planes), name
                assert np.array_equal(patterns(found.decode()), patterns(twin.weight)), (name, rank, ranks)


def check_loaded_layers_compute_as_stock() -> None:
    x = torch.randn(3, 320).bfloat16()
    for name in ("qkv", "replicated", "head"):
        packed, twin = filled(name, 0, 1)
        for layer in (packed, twin):
            layer.quant_method.process_weights_after_loading(layer)
        assert not [one for one, _ in packed.named_parameters() if one.startswith("weight_")], name
        one, two = (layer.quant_method.apply(layer, x) for layer in (packed, twin))
        assert torch.equal(one.view(torch.int16), two.view(torch.int16)), name


def check_packed_layers_compute_and_share() -> None:
    """What a CUDA device does, here with the torch reference behind the operators."""
    embed, twin = filled("embedding", 0, 1)
    head, _ = filled("head", 0, 1)
    method = embed.quant_method
    found = embed.gathering.finish(*embed.packed_shape, torch.device("cpu"))
    assert isinstance(found, Planes)
    method._use_packed(embed, product.store(found))
    head.quant_method.tie_weights(head, embed)
    assert head.weight_lo is embed.weight_lo
    del embed.gathering
    head.quant_method.process_weights_after_loading(head)
    assert head.packed_0 is embed.packed_0
    assert head.weight.shape == (0, 320)
    ids, x = torch.tensor([[1, 99], [127, 1]]), torch.randn(3, 320).bfloat16()
    assert np.array_equal(patterns(embed(ids)), patterns(twin.weight[ids]))
    clean = twin.weight.isfinite().all(1)
    logits, expected = head.quant_method.apply(head, x), x @ twin.weight.t()
    assert torch.allclose(logits[:, clean].float(), expected[:, clean].float(), rtol=0.02, atol=0.01)


def check_packing_while_loading() -> None:
    config = get_quantization_config("weight12")()
    layer = LAYERS["replicated"][0](config)
    assert isinstance(layer.quant_method, PackingMethod)
    weight = torch.from_numpy(samples.heavy_tailed((256, 320), 1).copy()).view(BF16)
    found = packed_at_load(weight)
    assert found is not None
    assert np.array_equal(patterns(found.decode()), patterns(weight))
    for kept in (
        samples.random_bits((256, 320), 1),
        samples.normal((16, 320), 1),
        samples.normal((600, 128), 1),
    ):
        assert packed_at_load(torch.from_numpy(kept.copy()).view(BF16)) is None
    assert packed_at_load(weight.float()) is None


def refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        if words in str(error):
            return
        raise
    raise AssertionError(f"not refused: {words}")


def check_refusals() -> None:
    config = get_quantization_config("weight12")
    good = {"quant_method": "weight12", "version": VERSION, "kept": []}
    assert config.from_config(good).packed
    refused(
        CallError,
        "version 2; this program reads version 1",
        lambda: config.from_config({**good, "version": 2}),
    )
    refused(CallError, "`bits` is unknown", lambda: config.from_config({**good, "bits": 4}))
    packed = config.from_config(good)
    refused(CallError, "owner/name is no folder", lambda: packed.maybe_update_config("owner/name"))
    with tempfile.TemporaryDirectory() as folder:
        refused(WeightError, "no weight12.json", lambda: packed.maybe_update_config(folder))
    assert Path(folder).name not in packed.known

    def in_float16() -> Any:
        return linear.ReplicatedLinear(320, 96, params_dtype=torch.float16, quant_config=config_of({}))

    def inside_a_group() -> Any:
        with rank_of(0, 5):
            return linear.RowParallelLinear(
                480, 96, params_dtype=BF16, quant_config=config_of({}), prefix="down"
            )

    refused(CallError, "use --dtype bfloat16", in_float16)
    refused(CallError, "down: tensor parallelism gives each rank 96 of 480 columns", inside_a_group)
    experts = type("FusedMoE", (torch.nn.Module,), {})()
    refused(
        CallError,
        "experts: weight12 does not read layers of experts",
        lambda: packed.get_quant_method(experts, "experts"),
    )
    assert packed.get_quant_method(torch.nn.Module(), "attention") is None


def main() -> None:
    """Run every check."""
    register()
    register()  # vLLM may call it more than once
    config = VllmConfig()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, "gloo")  # noqa: S306 - no secret
        initialize_model_parallel(1)
        for name, check in [item for item in globals().items() if item[0].startswith("check_")]:
            print(name, flush=True)
            check()


if __name__ == "__main__":
    main()
