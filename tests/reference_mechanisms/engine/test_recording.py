"""Lanes that are recorded in the midst of a request leave what it has cached alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.loading import load_target
from tests.reference_mechanisms.engine.forcing import ids_of
from tests.reference_mechanisms.engine.rehearsed import Rehearsed
from tests.reference_mechanisms.engine.test_static_steps import CAPACITY, PROMPTS, WIDTH, decoded
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

NODES, ROWS = 11, 16
HOT = Sampling(max_tokens=20, temperature=0.9, seed=3)


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    at = tmp_path_factory.mktemp("recording") / "target"
    if request.param == "dense":
        return load_target(write_model(at), torch.float32, CPU)
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 3, "full_attention_interval": 2}
    return load_target(write_hybrid(at, "qwen3_5", initializer_range=0.2, **sizes), torch.float32, CPU)


def decoder_on(target: Target, graphs: Graphs) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, graphs))
    return Decoder(target, (), lambda ids: "", CAPACITY, lanes=lanes)


def trees(target: Target, prompt: tuple[int, ...], sampling: Sampling) -> Drafter:
    plain = decoded(decoder_on(target, Graphs(CPU)), NoDrafter(), prompt, sampling)
    return RandomTrees({prompt: ids_of(plain)}, VOCAB, 1, NODES)


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=20), HOT], ids=["greedy", "hot"])
@pytest.mark.parametrize("kind", ["chains", "trees"])
def test_the_first_request_is_that_of_a_lane_that_stood_before(
    target: Target, kind: str, sampling: Sampling
) -> None:
    graphs, prompt = Rehearsed(CPU), PROMPTS[0]
    found = []
    for one in (graphs, Graphs(CPU)):
        drafter = NoDrafter() if kind == "chains" else trees(target, prompt, sampling)
        found.append(decoded(decoder_on(target, one), drafter, prompt, sampling, capture=True))
    assert graphs.rehearsals > 2
    assert found[0] == found[1]
