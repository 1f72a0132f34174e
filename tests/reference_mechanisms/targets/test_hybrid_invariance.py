"""A hybrid target with layers of real width: a row is bitwise the same whatever runs with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.probe import probe
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.targets.linear import prepacks
from tests.reference_mechanisms.targets.hybrids import in_pieces, same, states, verified, write_hybrid
from tests.reference_mechanisms.targets.models import CPU, random_ids

START, ROWS = 20, 24
IDS = random_ids(START + ROWS)
# Heads as wide as published ones, their number as odd as they come: work of one row is spread over threads.
WIDE: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 9,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("wide"), **WIDE)


@pytest.fixture(scope="module", params=TYPES, ids=str)
def target(folder: Path, request: pytest.FixtureRequest) -> HybridTarget:
    if not prepacks(request.param, CPU):
        pytest.skip(f"no prepacked product for {request.param} here: torch's own rounds by the row count")
    return load_hybrid(folder, request.param, CPU)


def begun(target: HybridTarget) -> HybridCache:
    cache = target.new_cache(1, START + ROWS)
    in_pieces(target, cache, IDS, [START])
    return cache


@pytest.fixture(scope="module")
def alone(target: HybridTarget) -> Tensor:
    """Every row as a step of its own."""
    return in_pieces(target, begun(target), IDS, [1] * ROWS)


def test_a_row_is_the_same_alone_and_with_rows_behind_it(
    target: HybridTarget, alone: Tensor, threads: int
) -> None:
    assert alone.isfinite().all()
    cache = begun(target)
    for rows in (1, 2, 3, 5, 8, 11, 16, ROWS):
        found = verified(target, cache, IDS[START : START + rows])
        assert torch.equal(found, alone[:rows]), f"{rows} rows"


def test_a_prompt_leaves_the_same_state_whatever_its_pieces(target: HybridTarget, threads: int) -> None:
    whole, pieces = target.new_cache(1, START + ROWS), target.new_cache(1, START + ROWS)
    in_pieces(target, whole, IDS, [START + ROWS])
    in_pieces(target, pieces, IDS, [7, 1, 1, 30, START + ROWS - 39])
    assert same(states(whole, 1), states(pieces, 1))


def test_the_probe_finds_it_invariant(target: HybridTarget) -> None:
    assert probe(target, (1, 2, 3, 8), batch=2).row_invariant
