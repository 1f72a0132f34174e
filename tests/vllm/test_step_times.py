"""The worker of `weight12 bench-vllm` in a real vLLM on the CPU: its lines, its counter, its end."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reference_mechanisms.weight12.plugin.step_times.engine import Engine
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import (
    DRAFTER,
    ENVIRONMENT,
    MODEL,
    engine_arguments,
)
from reference_mechanisms.weight12.plugin.step_times.rounds import WORKER
from reference_mechanisms.weight12.plugin.step_times.steps import AR, DFLASH, PACKED, PLAIN

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; nox -s tests-vllm installs it",
    ),
]
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small(source: Path, target: Path, **changed: Any) -> str:
    """The shape in another size."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text()) | SMALL | changed
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


@pytest.mark.parametrize(("kind", "mode"), [(PACKED, AR), (PLAIN, DFLASH)])
def test_an_engine_tells_of_itself_and_of_its_calls(kind: str, mode: str, tmp_path: Path) -> None:
    arguments = engine_arguments(kind, mode, (1, 2))
    arguments |= {
        "model": small(MODEL, tmp_path / "model", num_hidden_layers=2, max_window_layers=2),
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_batched_tokens": 1024,
        "kv_cache_memory_bytes": 1 << 28,
    }
    if mode == DFLASH:  # a CPU knows no synthetic acceptance
        layers = {"mask_token_id": 511, "target_layer_ids": [0, 1]}
        draft = small(
            DRAFTER,
            tmp_path / "draft",
            num_hidden_layers=1,
            max_window_layers=1,
            num_target_layers=2,
            dflash_config=layers,
        )
        arguments["speculative_config"] = {"method": "dflash", "model": draft, "num_speculative_tokens": 15}
    command = [sys.executable, "-u", "-m", WORKER, json.dumps(arguments)]
    environment = {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with Engine(command, environment, tmp_path / "engine.log") as engine:
        facts = engine.ready(280)
        assert (facts.device, facts.packed_layers) == ("cpu", 0)  # there weight12 is decoded once
        assert facts.parameter_gb > 0
        for output in (4, 20):
            found = engine.call(2, 16, output, 60)
            assert found.tokens == 2 * output
            assert found.wall_s > 0
            if mode == AR:
                assert found.drafts is None
            else:
                assert found.drafts is not None
                assert 2 <= found.drafts <= 2 * output
