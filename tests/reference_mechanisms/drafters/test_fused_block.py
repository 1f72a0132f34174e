"""The fused DFlash against the network it stands for: the same drafts, through rejections and all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import BlockConfig, DFlash
from reference_mechanisms.drafters.fused_block import FusedBlock, take_weights
from reference_mechanisms.drafters.fusing import fusable, fused_program
from reference_mechanisms.drafters.static import BlockProgram
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.matrices import PlainMatrices
from tests.reference_mechanisms.engine.bench import small

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
DTYPE, DRAFTS, POSITIONS = torch.float64, small.BLOCK - 1, 100
REACHES = {
    "full": (Reach(), Reach()),
    "a causal window beside it": (Reach(causal=True, window=7), Reach()),
}


def network_of(config: BlockConfig, source: DummyCheckpoint) -> DFlash:
    """The network with the tensors of a checkpoint, under their published names."""
    network = DFlash(config).to(DEVICE, DTYPE)
    state = {name: source.take(name, tuple(at.shape), DTYPE) for name, at in network.state_dict().items()}
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("reaches", REACHES.values(), ids=list(REACHES))
def test_it_drafts_what_the_network_drafts(reaches: tuple[Reach, ...]) -> None:
    config = small.drafter_config(reaches)
    source = DummyCheckpoint("drafter", 4, DEVICE, spread=0.3)
    weights = take_weights(config, source, PlainMatrices(source, DTYPE, DEVICE), DTYPE, DEVICE)
    made_ends = DummyCheckpoint("ends", 5, DEVICE, spread=1.0)
    table, head = (made_ends.take(name, (small.VOCAB, small.HIDDEN), DTYPE) for name in ("embed", "head"))
    network = network_of(config, source)
    ends = (lambda ids: table[ids], lambda x: x @ head.t(), DRAFTS, POSITIONS)
    programs = (FusedBlock(weights, *ends), fused_program(network, *ends), BlockProgram(network, *ends))
    made = torch.Generator().manual_seed(0)
    found: list[list[Tensor]] = []
    start = torch.tensor([0], device=DEVICE)
    for kept in (9, 1, 4, 6, 2):  # of so many rows as a step has; the rest is overwritten
        rows = max(kept, DRAFTS + 1)
        taps = torch.randn((rows, 2 * small.HIDDEN), generator=made, dtype=DTYPE).to(DEVICE)
        following = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        last = torch.tensor([kept - 1], device=DEVICE)
        for program in programs:
            program.absorb(taps, start + torch.arange(rows, device=DEVICE), following, last)
        start = start + kept
        anchor = torch.tensor([kept], device=DEVICE)
        found.append([program.draft(anchor, start).clone() for program in programs])
    for fused, of_network, plain in found:
        assert torch.equal(fused, plain)
        assert torch.equal(of_network, plain)
    assert len({tuple(fused.tolist()) for fused, *_ in found}) > 2


def test_a_drafter_with_a_vocabulary_of_its_own_is_refused() -> None:
    source = DummyCheckpoint("drafter", 4, DEVICE)
    config = small.drafter_config()
    own = BlockConfig(
        **{**{name: getattr(config, name) for name in config.__slots__}, "draft_vocab_size": 50}
    )
    with pytest.raises(DrafterError, match="draft vocabulary"):
        take_weights(own, source, PlainMatrices(source, DTYPE, DEVICE), DTYPE, DEVICE)


def test_only_a_plain_dflash_is_fused_and_only_where_the_kernels_run() -> None:
    on_gpu = DEVICE.type == "cuda"
    config = small.drafter_config(heads=4, kv_heads=2, head_dim=32)
    network = DFlash(config).to(DEVICE, torch.bfloat16)
    assert fusable(network) == on_gpu
    assert not fusable(network.double())
    smaller = BlockConfig(
        **{**{name: getattr(config, name) for name in config.__slots__}, "draft_vocab_size": 50}
    )
    assert not fusable(DFlash(smaller).to(DEVICE, torch.bfloat16))
