"""How vLLM's layers load and use packed weights.

On CUDA a layer keeps the packed matrix and calls the kernels. On a CPU it is decoded once, at load, and goes
the way of stock: correct, and nothing is saved. Layers whose parts were all kept in bf16 always go that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from reference_mechanisms.weight12 import product
from reference_mechanisms.weight12.errors import CallError
from reference_mechanisms.weight12.layout import GROUP, SUFFIXES
from reference_mechanisms.weight12.onload import packed_at_load
from reference_mechanisms.weight12.planes import Planes
from reference_mechanisms.weight12.plugin.gathering import Gathering, Known, Part
from reference_mechanisms.weight12.plugin.placing import LayerPlace

TYPES = {"rawrow": torch.uint32, "rawval": torch.bfloat16}  # the others are bytes
PLAIN = "weight"


class _PackedLayer(LinearMethodBase):  # type: ignore[misc]  # vLLM is not typed here
    """What both methods share: a layer that has its packed matrix."""

    def __init__(self, stock: QuantizeMethodBase) -> None:
        self._stock = stock

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """X W^T + b."""
        return product.apply(
            x, [getattr(layer, name) for name in layer.packed_names], layer.packed_form, bias
        )

    def embedding(self, layer: Any, input_: Tensor) -> Tensor:
        """Rows of the matrix."""
        tensors = [getattr(layer, name) for name in layer.packed_names]
        return product.look_up(input_, tensors, layer.packed_form)

    def _use_stock(self, layer: Any, weight: Tensor) -> None:
        """Go on as an unquantized layer with this bf16 matrix."""
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.quant_method = self._stock
        self._stock.process_weights_after_loading(layer)

    def _use_packed(self, layer: Any, stored: product.Stored) -> None:
        names = tuple(f"packed_{number}" for number in range(len(stored.tensors)))
        for name, tensor in zip(names, stored.tensors, strict=True):
            layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        layer.packed_names = names
        layer.packed_form = (stored.layout, stored.rows, stored.columns)
        # Nothing reads it; speculators ask for its type, device and width before they share layers.
        empty = stored.tensors[0].new_empty((0, stored.columns), dtype=torch.bfloat16)
        layer.weight = nn.Parameter(empty, requires_grad=False)

    def _share(self, layer: Any, other: Any) -> None:
        """Use the matrix of another layer, which has been processed."""
        if not hasattr(other, "packed_names"):
            layer.weight = other.weight
            layer.quant_method = self._stock
            self._stock.process_weights_after_loading(layer)
            return
        for name in other.packed_names:
            layer.register_parameter(name, getattr(other, name))
        layer.packed_names, layer.packed_form = other.packed_names, other.packed_form
        layer.weight = other.weight


class PackedMethod(_PackedLayer):
    """A layer of a packed folder."""

    def __init__(self, stock: QuantizeMethodBase, name: str, known: Mapping[str, Known]) -> None:
        """Take packed tensors.

        Args:
            stock: vLLM's method for the layer in bf16.
            name: of the layer.
            known: the folder's packed tensors by digest.
        """
        super().__init__(stock)
        self._name, self._known = name, known

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        """Empty parameters under the names of the format, whose loaders gather what comes.

        Raises:
            CallError: the layer computes in another type, or ranks cut its columns inside a group.
        """
        del output_size
        if params_dtype != torch.bfloat16:
            raise CallError(f"{self._name} is {params_dtype}; weight12 holds bfloat16: use --dtype bfloat16")
        if input_size_per_partition != input_size and input_size_per_partition % GROUP:
            raise CallError(
                f"{self._name}: tensor parallelism gives each rank {input_size_per_partition} of "
                f"{input_size} columns; weight12 can be cut at multiples of {GROUP}, so use fewer ranks"
            )
        rows, columns = sum(output_partition_sizes), input_size_per_partition
        place = LayerPlace(extra["weight_loader"], rows, columns)
        padded = isinstance(layer, VocabParallelEmbedding)
        layer.gathering = Gathering(self._name, self._known, place, padded=padded)
        layer.packed_shape = (rows, columns)
        for suffix in SUFFIXES:
            empty = torch.empty(0, dtype=TYPES.get(suffix, torch.uint8))
            _register(layer, f"{PLAIN}_{suffix}", empty, _packed_loader(layer.gathering, suffix))
        _register(layer, PLAIN, torch.empty((0, columns), dtype=params_dtype), _plain_loader(layer.gathering))

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """The head uses what comes for the embedding; its own parameters become the embedding's.

        Raises:
            CallError: the model gives its embedding no quantization method.
        """
        if not isinstance(embed_tokens.quant_method, PackedMethod):
            raise CallError(
                f"{self._name}: this model keeps its embedding in bf16, so weight12 cannot read it"
            )
        layer.tied_to = (embed_tokens,)  # in a tuple: it is no child
        for name in (PLAIN, *(f"{PLAIN}_{suffix}" for suffix in SUFFIXES)):
            layer.register_parameter(name, getattr(embed_tokens, name))
        return layer

    def process_weights_after_loading(self, layer: Any) -> None:
        """Put the matrix together, once.

        Raises:
            WeightError: something is missing.
        """
        if not hasattr(layer, "gathering"):
            return
        gathering, device = layer.gathering, layer.weight.device
        for name in ("gathering", *(f"{PLAIN}_{suffix}" for suffix in SUFFIXES)):
            delattr(layer, name)
        if hasattr(layer, "tied_to"):
            embed_tokens = layer.tied_to[0]
            if hasattr(embed_tokens, "gathering"):
                embed_tokens.quant_method.process_weights_after_loading(embed_tokens)
            self._share(layer, embed_tokens)
            return
        rows, columns = layer.packed_shape
        found = gathering.finish(rows, columns, device)
        if isinstance(found, Planes) and device.type == "cuda":
            self._use_packed(layer, product.store(found))
        else:
            self._use_stock(layer, found.decode() if isinstance(found, Planes) else found)


class PackingMethod(_PackedLayer):
    """A layer of a plain folder: loaded as stock loads it, then packed."""

    def create_weights(self, layer: Any, *sizes: Any, **extra: Any) -> None:
        """As stock does."""
        self._stock.create_weights(layer, *sizes, **extra)

    def tie_weights(self, layer: Any, embed_tokens: Any) -> Any:
        """As stock does; the matrix is packed once."""
        layer.tied_to = (embed_tokens,)
        return self._stock.tie_weights(layer, embed_tokens)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack what the format would pack."""
        if hasattr(layer, "tied_to") and hasattr(layer.tied_to[0], "packed_names"):
            self._share(layer, layer.tied_to[0])
            return
        weight = layer.weight.detach()
        found = packed_at_load(weight) if weight.device.type == "cuda" else None
        if found is None:
            self._use_stock(layer, weight)
        else:
            self._use_packed(layer, product.store(found))


def _register(layer: Any, name: str, empty: Tensor, loader: Any) -> None:
    parameter: Any = nn.Parameter(empty, requires_grad=False)
    parameter.weight_loader = loader  # vLLM's loaders ask for it
    layer.register_parameter(name, parameter)


def _packed_loader(gathering: Gathering, suffix: str) -> Any:
    def load(param: nn.Parameter, loaded_weight: Tensor, loaded_shard_id: Part = None) -> None:
        del param
        gathering.take(suffix, loaded_weight, loaded_shard_id)

    return load


def _plain_loader(gathering: Gathering) -> Any:
    def load(param: nn.Parameter, loaded_weight: Tensor, loaded_shard_id: Part = None) -> None:
        del param
        gathering.take_plain(loaded_weight, loaded_shard_id)

    return load
