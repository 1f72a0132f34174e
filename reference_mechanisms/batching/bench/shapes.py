"""Targets and drafters of a bench, by name: folders with a config.json each, as vLLM reads them, and we too.

The hybrid has the sizes of published 27B hybrids (64 layers, every fourth of full attention), its drafter
those of the DFlash for one. That drafter's windows are left out: they are wider than any context here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.layouts import parse_layout
from reference_mechanisms.errors import DrafterError, TargetError
from reference_mechanisms.targets.config import ARCHITECTURES, LlamaConfig, read_config, read_json
from reference_mechanisms.targets.hybrid_config import HybridConfig, read_hybrid_config
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import DRAFTER, MODEL

HERE = Path(__file__).parent / "shapes"
STATE_BYTES = 4  # of a number of a recurrent state


class Shape(NamedTuple):
    """A target and its drafter."""

    model: Path
    drafter: Path

    @property
    def target(self) -> LlamaConfig | HybridConfig:
        """Sizes of the target.

        Raises:
            TargetError: the folder's config.json is of no known target.
        """
        names = read_json(self.model / "config.json").get("architectures") or [""]
        return read_config(self.model) if names[0] in ARCHITECTURES else read_hybrid_config(self.model)

    @property
    def block(self) -> BlockConfig:
        """Sizes of the drafter.

        Raises:
            DrafterError: it is no DFlash.
        """
        path = self.drafter / "config.json"
        raw: dict[str, Any] = json.loads(path.read_text())
        found = parse_layout(raw, str(path), ())
        if not isinstance(found, BlockConfig):
            raise DrafterError(f"{path} is of no DFlash")
        return found

    def cache_bytes(self, positions: int, drafts: int) -> int:
        """What one request keeps in an engine that holds a recurrent state for every draft.

        Args:
            positions: of the request.
            drafts: of a step; 0: no drafter.
        """
        config, cells = self.target, 0
        if drafts:
            sizes = self.block.sizes
            cells += len(self.block.reaches) * sizes.kv_heads * sizes.head_dim
        if isinstance(config, LlamaConfig):
            cells += config.layers * config.kv_heads * config.head_dim
            return positions * 2 * 2 * cells
        cells += config.kinds.count("full_attention") * config.kv_heads * config.head_dim
        delta = config.delta
        state = delta.value_heads * delta.key_dim * delta.value_dim * STATE_BYTES
        return positions * 2 * 2 * cells + config.kinds.count("linear_attention") * state * (1 + drafts)


SHAPES: Mapping[str, Shape] = {
    "qwen3-8b": Shape(MODEL, DRAFTER),
    "hybrid-27b": Shape(HERE / "hybrid-27b", HERE / "hybrid-27b-dflash"),
}


def shape_of(name: str) -> Shape:
    """A shape by its name.

    Raises:
        TargetError: naming the known ones.
    """
    if name.lower() not in SHAPES:
        raise TargetError(f"--shape {name}: known are {', '.join(SHAPES)}")
    return SHAPES[name.lower()]
