"""Steps of fixed shape in CUDA graphs: logits bitwise those of `ar`, whatever is drafted and accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.errors import TargetError
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.reference_mechanisms.engine.forcing import Script, ScriptedDrafter, ScriptedStatic, ids_of
from tests.reference_mechanisms.engine.test_static_steps import CAPACITY, DRAFTS, PROMPTS, ROWS, decoded
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
TYPES = [torch.float64, torch.float32, torch.bfloat16]
SAMPLING = Sampling(max_tokens=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("cuda") / "target", head_dim=32
    )  # as the Triton kernels take it


@pytest.fixture(scope="module", params=TYPES, ids=str)
def on_gpu(request: pytest.FixtureRequest, folder: Path) -> LlamaTarget:
    return load_llama(folder, request.param, torch.device("cuda"))


def recorded(target: LlamaTarget, *, records: bool = True) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(target.device, records=records)))
    return Decoder(target, (), lambda ids: "", CAPACITY, lanes=lanes)


def test_logits_are_bitwise_the_autoregressive_ones(on_gpu: LlamaTarget) -> None:
    decoder, bare = recorded(on_gpu), recorded(on_gpu, records=False)
    for prompt in PROMPTS:
        plain = decoded(decoder, NoDrafter(), prompt, SAMPLING, capture=True)
        script = Script(ids_of(plain), VOCAB, seed=7)
        assert decoded(bare, NoDrafter(), prompt, SAMPLING, capture=True) == plain
        host = decoded(decoder, ScriptedDrafter(script, 7), prompt, SAMPLING, capture=True)
        assert host[-1].logits_sha256 == plain[-1].logits_sha256
        assert len({event.accepted for event in host}) > 2


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_bitwise_the_same_where_the_device_drafts(on_gpu: LlamaTarget, name: str) -> None:
    decoder, prompt = recorded(on_gpu), PROMPTS[-1]
    plain = decoded(decoder, NoDrafter(), prompt, SAMPLING, capture=True)
    script = Script(ids_of(plain), VOCAB, seed=7)
    bound = bind(NETWORKS[name]().to(on_gpu.device, on_gpu.dtype), on_gpu, "drafter")
    drafter = bound.new_drafter(Drafting(drafts=DRAFTS))
    events = decoded(decoder, ScriptedStatic(drafter, script, prompt, "cuda"), prompt, SAMPLING, capture=True)
    assert events[-1].logits_sha256 == plain[-1].logits_sha256
    assert len({event.accepted for event in events}) > 2


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_drafts_what_the_cpu_drafts_in_float64(folder: Path, name: str) -> None:
    found = []
    for device in (CPU, torch.device("cuda")):
        target = load_llama(folder, torch.float64, device)
        bound = bind(NETWORKS[name]().to(device), target, "drafter")
        drafter = bound.new_drafter(Drafting(drafts=DRAFTS))
        found.append(decoded(recorded(target), drafter, PROMPTS[0], SAMPLING))
    assert found[0] == found[1]


def test_a_cache_that_does_not_fit_is_refused(on_gpu: LlamaTarget) -> None:
    with pytest.raises(TargetError, match=r"need \d+ bytes and \d+ are free"):
        Lanes(on_gpu, 10**11, Static(ROWS, Graphs(on_gpu.device)))
