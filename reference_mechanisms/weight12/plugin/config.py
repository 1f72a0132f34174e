"""What vLLM asks of a quantization method: which folders it reads, and which layers it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from reference_mechanisms.weight12.errors import CallError
from reference_mechanisms.weight12.layout import VERSION
from reference_mechanisms.weight12.plugin.gathering import Known, known_tensors
from reference_mechanisms.weight12.plugin.methods import PackedMethod, PackingMethod

METHOD = "weight12"
FIELDS = ("quant_method", "version", "kept")
EXPERTS = ("FusedMoE", "RoutedExperts")  # names of vLLM's layers of experts, by version


@register_quantization_config(METHOD)
class Weight12Config(QuantizationConfig):  # type: ignore[misc]  # vLLM is not typed here
    """A packed folder; or, without `packed`, a plain one whose matrices are packed once they are loaded."""

    def __init__(self, *, packed: bool = False) -> None:
        """VLLM makes this without arguments for a folder that has no `quantization_config`."""
        super().__init__()
        self.packed = packed
        self.known: Mapping[str, Known] = {}

    def get_name(self) -> Any:
        """What `--quantization` says."""
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Weights decode to bf16 bit for bit; no other type would be lossless."""
        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Ampere: the first with bf16 products."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """All there is to know is in config.json."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Weight12Config:
        """Of the `quantization_config` of a packed folder.

        Raises:
            CallError: it is of another version, or says what this program does not know.
        """
        if config.get("version") != VERSION:
            raise CallError(
                f"quantization_config: weight12 version {config.get('version')!r}; "
                f"this program reads version {VERSION}"
            )
        unknown = sorted(set(config) - set(FIELDS))
        if unknown:
            raise CallError(f"quantization_config: `{unknown[0]}` is unknown to weight12 version {VERSION}")
        return cls(packed=True)

    def maybe_update_config(self, model_name: str, *_: Any, **__: Any) -> None:
        """Hold the seals of a packed folder, and learn the digests of its tensors.

        Raises:
            CallError: the model is no folder.
            WeightError: it is no packed folder, or it was changed.
        """
        if not self.packed:
            return
        if not Path(model_name).is_dir():
            raise CallError(f"{model_name} is no folder; download it, then serve the folder")
        self.known = known_tensors(Path(model_name))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """The method of a layer.

        Raises:
            CallError: it is a layer of experts, in a packed folder.
        """
        if isinstance(layer, LinearBase):
            stock: QuantizeMethodBase = UnquantizedLinearMethod()
        elif isinstance(layer, VocabParallelEmbedding):
            stock = UnquantizedEmbeddingMethod()
        elif self.packed and type(layer).__name__ in EXPERTS:
            raise CallError(f"{prefix}: weight12 does not read layers of experts yet; serve the bf16 folder")
        else:
            return None
        if not self.packed:
            return PackingMethod(stock)
        return PackedMethod(stock, prefix or type(layer).__name__, self.known)
