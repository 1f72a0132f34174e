from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

from reference_mechanisms.engine.target import Target
from reference_mechanisms.targets.loading import load_target
from tests.harness.tiny import BOS, EOS, VOCAB, write_llama, write_tokenizer
from tests.reference_mechanisms.targets.hybrids import write_hybrid


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("engine") / "target")


@pytest.fixture(scope="session")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recurrent layers with attention between, and a tokenizer."""
    folder = tmp_path_factory.mktemp("engine") / "hybrid"
    write_hybrid(
        folder,
        "qwen3_5",
        vocab_size=VOCAB,
        bos_token_id=BOS,
        eos_token_id=EOS,
        num_hidden_layers=2,
        full_attention_interval=2,
    )
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS).save_pretrained(folder)
    return write_tokenizer(folder)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(("tiny_folder", torch.float32), id="float32"),
        # What is particular to float64 is in test_trained_drafters.py and test_static_steps.py.
        pytest.param(("tiny_folder", torch.float64), id="float64", marks=pytest.mark.slow),
        pytest.param(("hybrid_folder", torch.float32), id="hybrid"),
    ],
)
def target(request: pytest.FixtureRequest) -> Target:
    folder, dtype = request.param
    return load_target(request.getfixturevalue(folder), dtype, torch.device("cpu"))


def text_of(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < 256).decode("latin-1")
