from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from reference_mechanisms.engine.target import Target
from reference_mechanisms.targets.loading import load_target
from tests.harness.tiny import BOS, EOS, VOCAB, write_llama, write_tokenizer
from tests.reference_mechanisms.targets.hybrids import write_hybrid


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a dense target, and of one with a recurrent and an attention layer."""
    root = tmp_path_factory.mktemp("two-level")
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS}
    layers: dict[str, Any] = {"num_hidden_layers": 2, "full_attention_interval": 2}
    hybrid = write_hybrid(root / "hybrid", "qwen3_5", **sizes, **layers)
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS).save_pretrained(hybrid)
    return {"dense": write_llama(root / "dense"), "hybrid": write_tokenizer(hybrid)}


@pytest.fixture(scope="session")
def dense(folders: dict[str, Path]) -> Target:
    return load_target(folders["dense"], torch.float32, torch.device("cpu"))


@pytest.fixture(scope="session")
def hybrid(folders: dict[str, Path]) -> Target:
    return load_target(folders["hybrid"], torch.float32, torch.device("cpu"))


def text_of(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < 256).decode("latin-1")
