"""A dummy target, a dummy DFlash for batches and traces that are small enough for any machine."""

from __future__ import annotations

import torch

from reference_mechanisms.batching.bench.resident import Parts
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import Recording, Trace
from reference_mechanisms.batching.traces.imposing import Imposed, impose
from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.loading import build
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.hybrid_config import parse_hybrid_config
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.engine.bench import small

DRAFTS = small.BLOCK - 1
PROMPT, TOKENS, REQUESTS = 5, 16, 6
SLOTS = 4


def traces(tokens: int = TOKENS, requests: int = REQUESTS) -> tuple[Recording, tuple[Trace, ...]]:
    return impose(Imposed(lengths={DRAFTS: 3.0}, requests=requests, prompt=PROMPT, tokens=tokens, spread=1.5))


def parts(costs: StepCosts | None = None) -> Parts:
    target = small.target(torch.device("cpu"), torch.float32)
    network = build(small.drafter_config(), "cpu").to(torch.float32)
    source = DummyCheckpoint("drafter", 5, torch.device("cpu"))
    state = {
        name: source.take(name, tuple(one.shape), torch.float32) for name, one in network.state_dict().items()
    }
    network.load_state_dict(state)
    bound = bind(network.eval().requires_grad_(requires_grad=False), target, "small")
    return Parts(
        target=target,
        new_drafter=lambda: bound.new_drafter(Drafting(drafts=DRAFTS)),
        drafts=DRAFTS,
        new_runner=lambda settings: PackedRunner(target, settings.slots, PROMPT + TOKENS + DRAFTS + 1),
        costs=costs or staircase(SLOTS, DRAFTS, row=0.3),
    )


def settings(slots: int = SLOTS) -> BatchSettings:
    return BatchSettings(slots=slots, budget=True, adaptive=True, cohorts=True, prefill_rows=4, buckets=True)


def hybrid() -> HybridTarget:
    """Three recurrent layers and one of full attention."""
    raw = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "vocab_size": small.VOCAB,
        "hidden_size": small.HIDDEN,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 512,
    }
    device = torch.device("cpu")
    source = DummyCheckpoint("hybrid", 3, device)
    return HybridTarget(parse_hybrid_config(raw, "small"), source, torch.float32, device)
