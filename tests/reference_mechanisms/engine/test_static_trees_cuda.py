"""Trees and hybrid targets in CUDA graphs: logits bitwise those of `ar`, whatever is drafted and accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.probe import probe_lanes
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.llama import load_llama
from reference_mechanisms.targets.loading import load_target
from tests.reference_mechanisms.engine.forcing import Grove, GroveDrafter, ids_of
from tests.reference_mechanisms.engine.test_static_steps import CAPACITY, DRAFTS, PROMPTS, WIDTH, decoded
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
NODES, ROWS = 11, 16
SAMPLING = Sampling(max_tokens=40)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("cuda")
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 3, "full_attention_interval": 2}
    return {
        "dense": write_model(at / "dense", head_dim=32),  # as the Triton kernels take it
        "hybrid": write_hybrid(at / "hybrid", "qwen3_5", head_dim=32, initializer_range=0.2, **sizes),
        "hybrid, plain attention": write_hybrid(
            at / "plain", "qwen3_5", head_dim=48, initializer_range=0.2, **sizes
        ),
    }


@pytest.fixture(scope="module", params=["dense", "hybrid", "hybrid, plain attention"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def on_gpu(request: pytest.FixtureRequest, folders: dict[str, Path], kind: str) -> Target:
    return load_target(folders[kind], request.param, CUDA)


def recorded(target: Target, *, records: bool = True, ahead: int | None = None) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(target.device, records=records), ahead=ahead))
    return Decoder(target, (), lambda ids: "", CAPACITY, lanes=lanes)


def test_trees_of_the_host_have_the_logits_of_ar(on_gpu: Target) -> None:
    decoder, accepted = recorded(on_gpu), set()
    for seed, prompt in enumerate(PROMPTS):
        plain = decoded(decoder, NoDrafter(), prompt, SAMPLING, capture=True)
        bare = decoded(recorded(on_gpu, records=False), NoDrafter(), prompt, SAMPLING, capture=True)
        assert bare == plain
        trees = RandomTrees({prompt: ids_of(plain)}, VOCAB, seed, NODES)
        events = decoded(decoder, trees, prompt, SAMPLING, capture=True)
        assert events[-1].logits_sha256 == plain[-1].logits_sha256
        accepted |= {event.accepted for event in events}
    assert len(accepted) > 2


@pytest.mark.parametrize("name", NETWORKS)
def test_trees_of_the_device_have_the_logits_of_ar(on_gpu: Target, name: str) -> None:
    decoder, accepted = recorded(on_gpu), set()
    bound = bind(NETWORKS[name]().to(CUDA, on_gpu.dtype), on_gpu, "drafter")
    for seed, prompt in enumerate(PROMPTS):
        plain = decoded(decoder, NoDrafter(), prompt, SAMPLING, capture=True)
        inner = bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES))
        grove = GroveDrafter(inner, Grove(ids_of(plain), VOCAB, seed, CUDA), prompt)
        events = decoded(decoder, grove, prompt, SAMPLING, capture=True)
        assert events[-1].logits_sha256 == plain[-1].logits_sha256
        # Started ahead, nobody reads the logits; the tokens are the same.
        assert ids_of(decoded(decoder, grove, prompt, SAMPLING)) == ids_of(plain)
        accepted |= {event.accepted for event in events}
    assert accepted >= {0, 1, 2, 3}


def test_the_probe_finds_trees_alike(on_gpu: Target) -> None:
    lanes = Lanes(on_gpu, CAPACITY, Static(64, Graphs(CUDA)))
    found = probe_lanes(lanes.narrowed(1), lanes, trees=True)
    assert found.row_invariant, found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_plants_what_the_cpu_plants_in_float64(folders: dict[str, Path], name: str) -> None:
    found = []
    for device in (CPU, CUDA):
        target = load_llama(folders["dense"], torch.float64, device)
        bound = bind(NETWORKS[name]().to(device), target, "drafter")
        drafter = bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES))
        found.append(decoded(recorded(target), drafter, PROMPTS[0], SAMPLING))
    assert found[0] == found[1]
