from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.probe import probe, probe_lanes
from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.target import Forward
from reference_mechanisms.kernels.step import tree_choice, trees
from reference_mechanisms.targets.llama import LlamaTarget, load_llama


@pytest.fixture(scope="module")
def target(tiny_folder: Path) -> LlamaTarget:
    return load_llama(tiny_folder, torch.float32, torch.device("cpu"))


def test_an_invariant_engine_is_found_invariant(target: LlamaTarget) -> None:
    found = probe(target, (1, 2, 8), batch=2)
    assert found.row_invariant
    assert found.largest_difference == 0.0
    assert found.shapes == (1, 2, 8)


@pytest.mark.parametrize("rows", [2, 8])
def test_a_shape_that_rounds_in_another_way_is_found(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    honest = type(target).logits

    def shifted(self: LlamaTarget, hidden: Tensor) -> Tensor:
        found = honest(self, hidden)
        return found.nextafter(torch.full_like(found, torch.inf)) if len(hidden) == rows else found

    monkeypatch.setattr(type(target), "logits", shifted)
    found = probe(target, (1, 2, 8), batch=1)
    assert not found.row_invariant
    assert 0.0 < found.largest_difference < 1e-3


def test_a_batch_that_leaks_into_its_neighbour_is_found(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = type(target).forward

    def leaking(self: LlamaTarget, rows: Rows, cache: KVCache) -> Forward:
        found = honest(self, rows, cache)
        return found._replace(hidden=found.hidden + (len(rows.segments) - 1) * 1e-3)

    monkeypatch.setattr(type(target), "forward", leaking)
    assert not probe(target, (1,), batch=2).row_invariant
    assert probe(target, (1,), batch=1).row_invariant


def test_steps_of_fixed_shape_are_found_invariant_or_not(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = Lanes(target, 64, Static(8, Graphs(target.device)))
    found = probe_lanes(lanes, lanes, trees=True)
    assert found.row_invariant
    assert found.largest_difference == 0.0
    assert probe_lanes(lanes.narrowed(1), lanes).shapes == (8,)
    honest = type(target).logits

    def shifted(self: LlamaTarget, hidden: Tensor) -> Tensor:
        found = honest(self, hidden)
        found[1:] = found[1:].nextafter(torch.full_like(found[1:], torch.inf))
        return found

    monkeypatch.setattr(type(target), "logits", shifted)
    found = probe_lanes(lanes, lanes)
    assert not found.row_invariant
    assert 0.0 < found.largest_difference < 1e-3


def test_a_tree_that_rounds_otherwise_is_found(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes(target, 64, Static(8, Graphs(target.device)))
    honest = trees.TORCH_TREES

    def late(turn: trees.TreeTurn) -> None:
        honest.lay(turn)
        turn.depths.add_(1)

    monkeypatch.setattr(tree_choice, "TORCH_TREES", honest._replace(lay=late))
    assert probe_lanes(lanes, lanes).row_invariant
    assert not probe_lanes(lanes, lanes, trees=True).row_invariant
