"""Trees and trained drafters on the engine with a hybrid target: autoregressive decoding, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.loading import load_target
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.engine import test_trained_drafters as trained
from tests.reference_mechanisms.engine.conftest import text_of
from tests.reference_mechanisms.engine.test_decode import CAPACITY, PROMPTS, ends, outputs, requests
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid

NODES = 12


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("count", [1, 3])
def test_output_and_logits_are_bitwise_the_autoregressive_ones(
    hybrid_folder: Path, count: int, temperature: float
) -> None:
    target = load_target(hybrid_folder, torch.float32, torch.device("cpu"))
    engine = Decoder(target, (EOS,), text_of, CAPACITY, spare=NODES)
    batch = requests(
        Sampling(max_tokens=24, temperature=temperature, seed=5, ignore_eos=True), PROMPTS[:count]
    )
    plain = list(engine.stream(batch, NoDrafter()))
    known = {one.prompt: output for one, output in zip(batch, outputs(plain, len(batch)), strict=True)}
    accepted = set()
    for seed in range(3):
        drafted = list(engine.stream(batch, RandomTrees(known, VOCAB, seed, NODES)))
        for slot, last in ends(plain).items():
            assert ends(drafted)[slot].logits_sha256 == last.logits_sha256
        assert outputs(drafted, count) == outputs(plain, count)
        accepted |= {event.accepted for event in drafted}
    assert accepted >= {0, 1, 2, 3}


@pytest.mark.parametrize("make", trained.NETWORKS.values(), ids=trained.NETWORKS)
def test_a_drafter_with_weights_reads_its_layers(make: Callable[[], Network], tmp_path: Path) -> None:
    """In float64, as the drafters are; what they see is held in `test_trained_drafters`."""
    folder = write_hybrid(tmp_path, hidden_size=trained.WIDTH, num_hidden_layers=3, full_attention_interval=2)
    target = load_target(folder, torch.float64, torch.device("cpu"))
    engine, bound = trained.decoder(target), bind(make(), target, "drafter")
    batch = trained.requests(Sampling(max_tokens=24))
    known = dict(zip(trained.PROMPTS, engine.continuation(batch), strict=True))
    forced = trained.Forced(bound.new_drafter(Drafting(drafts=trained.DRAFTS)), known, 1)
    events = list(engine.stream(batch, forced))
    assert trained.outputs(events) == [known[prompt] for prompt in trained.PROMPTS]
    assert {event.accepted for event in events if event.kind == "step"} >= {0, 1, 2, 3}
