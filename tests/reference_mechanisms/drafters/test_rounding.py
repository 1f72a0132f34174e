"""Drafters in eight bits: what is rounded, and that every way to run them reads the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.fused_block import FusedBlock
from reference_mechanisms.drafters.fusing import fused_program, network_weights
from reference_mechanisms.drafters.rounding import eight_of, round_weights
from reference_mechanisms.drafters.static import BlockProgram
from reference_mechanisms.kernels.weight12.eight import EightLinear, restored, rounded
from reference_mechanisms.kernels.weight12.schedule import EIGHTS, Eight
from reference_mechanisms.targets.dummy import DummyCheckpoint
from tests.reference_mechanisms.drafters.test_fused_block import DEVICE, DRAFTS, POSITIONS, network_of
from tests.reference_mechanisms.engine.bench import small

every_eight = pytest.mark.parametrize("eight", EIGHTS)
WORST = {"int8": 0.5 / 127, "fp8": 2**-4}  # error beside the row's largest, and beside the weight itself


@every_eight
def test_a_weight_moves_by_half_a_step_at_most(eight: Eight) -> None:
    matrix = torch.randn((40, 64), generator=torch.Generator().manual_seed(0))
    matrix[7] = 0
    found = restored(rounded(matrix, eight))
    measure = matrix.abs() if eight == "fp8" else matrix.abs().amax(1, keepdim=True)
    smallest = matrix.abs().amax(1, keepdim=True) / 448 * 2**-9  # steps of e4m3 next to zero
    assert bool(((found - matrix).abs() <= WORST[eight] * measure * 1.001 + smallest).all())
    assert bool((found != matrix).any())
    assert torch.equal(restored(rounded(found, eight)), found) or eight == "int8"


@every_eight
def test_all_products_of_a_network_are_rounded_and_nothing_else(eight: Eight) -> None:
    source = DummyCheckpoint("drafter", 4, DEVICE, spread=0.3)
    network, plain = (network_of(small.drafter_config(), source).float() for _ in range(2))
    assert eight_of(network.fc) is None
    round_weights(network, eight)
    assert eight_of(network.fc) == eight
    products = {name for name, part in network.named_modules() if isinstance(part, nn.Linear)}
    for name, value in plain.state_dict().items():
        found = network.state_dict()[name]
        if name.removesuffix(".weight") in products and name.endswith(".weight"):
            assert torch.equal(found, restored(rounded(value, eight)))
        else:
            assert torch.equal(found, value)


@every_eight
def test_the_fused_program_drafts_what_the_rounded_network_drafts(eight: Eight) -> None:
    source = DummyCheckpoint("drafter", 4, DEVICE, spread=0.3)
    network = network_of(small.drafter_config(), source).float()
    round_weights(network, eight)
    made_ends = DummyCheckpoint("ends", 5, DEVICE, spread=1.0)
    table, head = (
        made_ends.take(name, (small.VOCAB, small.HIDDEN), torch.float32) for name in ("embed", "head")
    )
    ends: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], int, int]
    ends = (lambda ids: table[ids], lambda x: x @ head.t(), DRAFTS, POSITIONS)
    assert isinstance(network_weights(network).join, EightLinear) or DEVICE.type == "cuda"
    programs: list[FusedBlock | BlockProgram] = [fused_program(network, *ends), BlockProgram(network, *ends)]
    made, start = torch.Generator().manual_seed(0), torch.tensor([0], device=DEVICE)
    for kept in (9, 1, 4):
        rows = max(kept, DRAFTS + 1)
        taps = torch.randn((rows, 2 * small.HIDDEN), generator=made).to(DEVICE)
        last = torch.tensor([kept - 1], device=DEVICE)
        for program in programs:
            positions = start + torch.arange(rows, device=DEVICE)
            program.absorb(taps, positions, torch.zeros_like(positions), last)
        start = start + kept
        one, two = (program.draft(torch.tensor([kept], device=DEVICE), start).clone() for program in programs)
        assert torch.equal(one, two)
