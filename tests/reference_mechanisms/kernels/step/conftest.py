from __future__ import annotations

import importlib.util

import pytest
import torch


@pytest.fixture(autouse=True)
def few_chunks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter pays for every turn of a loop: two chunks at once, and so more than one batch."""
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return
    for name in ("fused_attention", "fused_layer_attention"):
        monkeypatch.setattr(f"reference_mechanisms.kernels.step.{name}.JOINED", 2)
