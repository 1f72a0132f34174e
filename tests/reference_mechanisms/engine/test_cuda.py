"""The same engine on a CUDA device: exact where the probe says so, and never another token in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.calibration import NoDrafter, ReplayDrafter
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.probe import probe
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.engine.conftest import text_of
from tests.reference_mechanisms.engine.test_decode import CAPACITY, RandomDrafter, ends, outputs, requests

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", params=[torch.float64, torch.float32, torch.bfloat16], ids=str)
def on_gpu(request: pytest.FixtureRequest, tiny_folder: Path) -> LlamaTarget:
    return load_llama(tiny_folder, request.param, torch.device("cuda"))


def test_speculative_output_is_the_autoregressive_one_where_rows_do_not_notice_each_other(
    on_gpu: LlamaTarget,
) -> None:
    decoder = Decoder(on_gpu, (EOS,), text_of, CAPACITY)
    batch = requests(Sampling(max_tokens=30))
    plain = list(decoder.stream(batch, NoDrafter()))
    recorded = {
        request.prompt: output for request, output in zip(batch, decoder.continuation(batch), strict=True)
    }
    invariant = probe(on_gpu, range(1, 9), batch=4).row_invariant
    for drafter in (ReplayDrafter(7, recorded), NgramDrafter(7, 1, 3), RandomDrafter(recorded, 1)):
        drafted = list(decoder.stream(batch, drafter))
        if invariant or on_gpu.dtype == torch.float64:
            assert outputs(drafted, len(batch)) == outputs(plain, len(batch))
        if invariant:
            assert {e.logits_sha256 for e in ends(drafted).values()} == {
                e.logits_sha256 for e in ends(plain).values()
            }


def test_a_gpu_emits_what_the_cpu_emits_in_float64(on_gpu: LlamaTarget, tiny_folder: Path) -> None:
    if on_gpu.dtype != torch.float64:
        pytest.skip("other types round differently on the two")
    on_cpu = load_llama(tiny_folder, torch.float64, torch.device("cpu"))
    batch = requests(Sampling(max_tokens=40, temperature=0.9, seed=4))
    found = [
        outputs(list(Decoder(target, (EOS,), text_of, CAPACITY).stream(batch, NoDrafter())), len(batch))
        for target in (on_gpu, on_cpu)
    ]
    assert found[0] == found[1]
    assert all(0 <= token < VOCAB for output in found[0] for token in output)
