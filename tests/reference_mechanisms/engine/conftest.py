from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.harness.tiny import write_llama


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("engine") / "target")


@pytest.fixture(scope="session", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def target(request: pytest.FixtureRequest, tiny_folder: Path) -> LlamaTarget:
    return load_llama(tiny_folder, request.param, torch.device("cpu"))


def text_of(ids: Sequence[int]) -> str:
    return bytes(token for token in ids if token < 256).decode("latin-1")
