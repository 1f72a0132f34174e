"""Without a network the hub names the repository and the mend, and nothing else comes out."""

from __future__ import annotations

import pytest

from harness.errors import ModelError
from harness.grid.hub import HuggingFaceHub


def test_a_hub_that_does_not_answer_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"cannot read Qwen/Qwen3-8B: .*accept its licence"):
        HuggingFaceHub().look("Qwen/Qwen3-8B", None)
