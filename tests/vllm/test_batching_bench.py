"""The worker of `batching bench-vllm` in a real vLLM on the CPU: request sets at several loads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest

from reference_mechanisms.batching.bench import stock
from reference_mechanisms.batching.bench.commands import VLLM_WORKER
from reference_mechanisms.batching.bench.lines import Served, Wanted
from reference_mechanisms.batching.bench.shapes import Shape
from reference_mechanisms.batching.bench.vllm_worker import Asked
from reference_mechanisms.batching.traces.format import TRACES
from reference_mechanisms.batching.traces.imposing import Imposed, impose
from reference_mechanisms.weight12.plugin.step_times.engine import Engine, EngineFault
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import DRAFTER, ENVIRONMENT, MODEL
from tests.vllm.test_step_times import small

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed; nox -s tests-vllm installs it",
    ),
]
TOKENS = 12


def test_a_set_is_served_at_each_load(tmp_path: Path) -> None:
    recording, traces = impose(Imposed(lengths={5: 3.0}, requests=6, prompt=9, tokens=TOKENS))
    TRACES.write(tmp_path / "traces.json", recording, traces)
    model = small(MODEL, tmp_path / "model", num_hidden_layers=2, max_window_layers=2)
    shape = Shape(Path(model), DRAFTER)
    arguments = stock.stock_arguments(shape, traces, (1, 3), 0)
    del arguments["compilation_config"]
    arguments |= {"enforce_eager": True, "max_num_batched_tokens": 256, "kv_cache_memory_bytes": 1 << 28}
    asked = Asked(arguments=arguments, traces=str(tmp_path / "traces.json"), held=True)
    command = [sys.executable, "-u", "-m", VLLM_WORKER, msgspec.json.encode(asked).decode()]
    # On a CPU vLLM gives the model a process of its own, unless there is one for everything.
    alone = {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with Engine(command, alone, tmp_path / "log") as engine:
        assert engine.ready(280).device == "cpu"
        engine.ask(Wanted(concurrency=3, requests=6), Served, 120)  # to warm up
        single, together = (engine.ask(Wanted(concurrency=load, requests=6), Served, 120) for load in (1, 3))
        assert single.tokens == together.tokens == 6 * TOKENS
        assert (single.concurrency, together.concurrency) == (1, 3)
        # The scheduler was told: one at a time takes longer.
        assert single.wall_s > 1.5 * together.wall_s
        with pytest.raises(EngineFault, match="there are 6 traces"):
            engine.ask(Wanted(concurrency=1, requests=7), Served, 120)
