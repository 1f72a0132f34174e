"""What an engine's model consists of; a module of its own, so that vLLM's processes can import it."""

from __future__ import annotations

from typing import Any

from torch import nn


def contents(model: nn.Module) -> dict[str, Any]:
    """How many layers compute from packed weights, in which layouts, and the gigabytes of all parameters."""
    layers = [one for one in model.modules() if hasattr(one, "packed_names")]
    forms: Any = [one.packed_form for one in layers]
    sizes = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters() if p.numel()}
    return {
        "packed_layers": len(layers),
        "layouts": sorted({form[0] for form in forms}),
        "parameter_gb": round(sum(sizes.values()) / 1e9, 3),
    }
