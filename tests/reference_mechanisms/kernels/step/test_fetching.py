"""How much of the next product's weights is fetched."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from reference_mechanisms.kernels.step.fetching import fetched
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import PlainMatrices
from tests.reference_mechanisms.engine.bench import small

MIB = 1 << 20


@pytest.mark.parametrize(
    ("stored", "mib", "count"),
    [(3 * MIB, 2, 2 * MIB), (MIB + 200, 2, MIB + 128), (100, 2, 0), (3 * MIB, 0, 0)],
)
def test_so_many_bytes_are_fetched_as_there_are_whole_lines_of(stored: int, mib: int, count: int) -> None:
    weights = torch.zeros(stored, dtype=torch.uint8)
    found, size = fetched(weights, mib)
    assert size == count
    assert (found is weights) == (count > 0)


def test_without_weights_in_one_tensor_nothing_is_fetched() -> None:
    assert fetched(None, 8) == (None, 0)
    shifted = torch.zeros(3 * MIB + 1, dtype=torch.uint8)[1:]  # a fetch begins at a multiple of 16
    assert fetched(shifted, 2) == (None, 0)


def test_a_target_names_the_weights_behind_each_attention() -> None:
    device = torch.device("cpu")
    source = DummyCheckpoint("small", 3, device)
    matrices = PlainMatrices(source, torch.float32, device)
    target = LlamaTarget(small.config(), source, torch.float32, device, matrices)
    assert target.behind_attention() == (None,) * small.LAYERS  # plain ones tell of none
    units = torch.zeros(4)
    target._layers[1].output.units = units  # type: ignore[attr-defined]
    assert target.behind_attention()[1] is units
