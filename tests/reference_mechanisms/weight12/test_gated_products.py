"""A gate opened in the launch of its product: the same target, and rows do not notice each other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.kernels.weight12.arrange import in_turn
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import Linear, Matrices, PlainMatrices
from reference_mechanisms.weight12.raw_matrices import RawMatrices, opens
from reference_mechanisms.weight12.target import PackedMatrices
from tests.reference_mechanisms.engine.bench import small

CPU = torch.device("cpu")
IDS = list(range(3, 20))


class InTurn(PlainMatrices):
    """Opens gates as the kernels do: rows of the gate and of the other in turn, in eights."""

    def gated(self, parts: Sequence[tuple[str, int]], columns: int) -> Linear | None:
        assert opens(parts)
        weight = torch.cat([self._take(name, rows, columns) for name, rows in parts])
        product = self._product(weight[in_turn(len(weight))])

        def opened(x: Tensor) -> Tensor:
            eights = product(x).view(len(x), -1, 2, 8)
            return torch.nn.functional.silu(eights[:, :, 0]).mul(eights[:, :, 1]).reshape(len(x), -1)

        return opened


def logits(matrices: Matrices, source: DummyCheckpoint, ids: Sequence[int], device: torch.device) -> Tensor:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    fields = {} if device.type == "cpu" else {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    target = LlamaTarget(small.config(**fields), source, dtype, device, matrices)
    rows = Rows(ids, range(len(ids)), [Segment(slot=0, start=0, rows=len(ids))])
    return target.logits(target.forward(rows, target.new_cache(1, 64)).hidden)


def test_a_target_with_opened_gates_is_the_same_target() -> None:
    source = DummyCheckpoint("small", 3, CPU)
    plain, opened = PlainMatrices(source, torch.float32, CPU), InTurn(source, torch.float32, CPU)
    expected = logits(plain, source, IDS, CPU)
    assert torch.allclose(logits(opened, source, IDS, CPU), expected, rtol=0, atol=1e-5)
    assert expected.std() > 1e-3


@pytest.mark.parametrize("made", [RawMatrices, PackedMatrices])
def test_on_a_cpu_no_gate_is_opened_early(made: type[RawMatrices | PackedMatrices]) -> None:
    source = DummyCheckpoint("small", 3, CPU)
    assert made(source, CPU, gates=True).gated([("a", 16), ("b", 16)], 64) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("made", [RawMatrices, PackedMatrices])
def test_opened_gates_on_a_gpu(made: type[RawMatrices | PackedMatrices]) -> None:
    device = torch.device("cuda")
    source = DummyCheckpoint("small", 3, device)
    expected = logits(made(source, device), source, IDS, device)
    found = logits(made(source, device, gates=True), source, IDS, device)
    torch.testing.assert_close(found, expected, rtol=0, atol=float(expected.abs().max()) / 50)
    alone = logits(made(source, device, gates=True), source, IDS[:1], device)
    assert torch.equal(alone[0], found[0])
