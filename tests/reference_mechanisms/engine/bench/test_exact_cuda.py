"""Every logit of speculative decoding is that of autoregressive decoding, in bf16 and in weight12 alike."""

from __future__ import annotations

import pytest
import torch

from reference_mechanisms.drafters.fused_block import FusedDrafter, take_weights
from reference_mechanisms.engine.bench import running
from reference_mechanisms.engine.bench.engines import matrices_of
from reference_mechanisms.engine.bench.running import Bench, Load
from reference_mechanisms.engine.fitting import WeightFormat
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.llama import LlamaTarget
from tests.reference_mechanisms.engine.bench import small
from tests.reference_mechanisms.engine.bench.test_running import no_record

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FORMATS: tuple[WeightFormat, ...] = ("bf16", "weight12")
WIDE = {"hidden_size": 256, "intermediate_size": 512, "heads": 8, "kv_heads": 2, "head_dim": 64}
DTYPE = torch.bfloat16


def wide_target(weights: WeightFormat) -> LlamaTarget:
    """Wide enough that matrices are packed."""
    device = torch.device("cuda")
    source = DummyCheckpoint("wide", 3, device, spread=0.08)
    fields = WIDE | {"vocab_size": 3000}
    return LlamaTarget(small.config(**fields), source, DTYPE, device, matrices_of(source, weights, device))


def wide_drafter(target: LlamaTarget, weights: WeightFormat, drafts: int) -> FusedDrafter:
    config = small.drafter_config(hidden=256, inner=512, heads=8, kv_heads=2, head_dim=64, vocab=3000)
    source = DummyCheckpoint("wide drafter", 4, target.device, spread=0.08)
    matrices = matrices_of(source, weights, target.device)
    found = take_weights(config, source, matrices, DTYPE, target.device)
    return FusedDrafter(found, target.embed, target.logits, drafts)


@pytest.mark.parametrize("drafts", [1, small.BLOCK - 1])
def test_logits_are_those_of_autoregressive_decoding(monkeypatch: pytest.MonkeyPatch, drafts: int) -> None:
    monkeypatch.setattr(running, "record", no_record)
    length = 1 + 0.6 * drafts
    load = Load(prompt=70, output=300, requests=3, seed=drafts, acceptance_length=length)
    digests = {}
    with torch.inference_mode():
        for weights in FORMATS:
            target = wide_target(weights)
            assert "streamed" in target.linear_kernel
            bench = Bench(target, load, lambda text: None)
            bench.autoregressive()
            found = bench.speculative(wide_drafter(target, weights, drafts), drafts)
            assert found["requests_with_other_logits"] == 0
            assert 1.2 < found["acceptance_length"] < drafts + 1
            digests[weights] = [bench._known[number].logits_sha256 for number in range(load.requests)]
    assert digests["bf16"] == digests["weight12"]
    assert len(set(digests["bf16"])) == load.requests
