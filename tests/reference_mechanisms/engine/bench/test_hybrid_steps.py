"""Which steps of a hybrid are timed, and that a round is a step; the clock of these tests counts."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_mechanisms.batching.bench.shapes import shape_of
from reference_mechanisms.engine.bench import command, hybrid_command, hybrid_steps
from reference_mechanisms.engine.bench.hybrid_steps import KEPT, cases, tree_of, way_to
from reference_mechanisms.errors import MechanismError, TargetError
from reference_mechanisms.kernels.step import delta
from reference_mechanisms.targets import shapes
from reference_mechanisms.targets.shapes import hybrid_shape_config

SMALL: dict[str, Any] = {
    **shapes.HYBRID_SHAPES["Qwen3.5-9B"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "max_position_embeddings": 512,
}


def test_the_27b_is_that_of_the_other_benches() -> None:
    assert hybrid_shape_config("Qwen3.5-27B") == shape_of("hybrid-27b").target
    smaller = hybrid_shape_config("Qwen3.5-9B")
    assert (smaller.layers, smaller.kinds.count("full_attention")) == (32, 8)
    with pytest.raises(TargetError, match=r"take one of Qwen3\.5-9B, Qwen3\.5-27B"):
        hybrid_shape_config("other")


def test_trees_have_a_spine_and_siblings() -> None:
    parents = tree_of(32, seed=0)
    assert len(parents) == 32
    assert parents[0] == -1
    assert all(-1 <= parent < row for row, parent in enumerate(parents))
    depths = [len(way_to(parents, row)) - 1 for row in range(32)]
    assert max(depths) == 16
    assert len({*parents}) < 31  # some have several children
    by_name = {case.name: case for case in cases(0)}
    assert [case.rows for case in by_name.values()] == [1, 8, 16, 16, 32, 64]
    deep = by_name["tree of 64 rows"]
    assert deep.parents is not None
    assert deep.path == way_to(deep.parents, deep.path[-1])
    assert len(deep.path) == KEPT


@pytest.fixture
def clock() -> Callable[[], int]:
    ticks = itertools.count()
    return lambda: 1_000_000 * next(ticks)


def options(out: Path, **changes: object) -> argparse.Namespace:
    fixed = {"out": out, "context": 5, "rounds": 2, "seed": 0, "shape": ["Small"], "weights": ["bf16"]}
    return argparse.Namespace(**(fixed | changes))


def test_every_case_is_timed_in_both_forms(
    tmp_path: Path, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "HYBRID_SHAPES", {"Small": SMALL})
    text = hybrid_command.measure(options(tmp_path), "Small", "bf16", torch.device("cpu"), clock)
    found = json.loads((tmp_path / "hybrid-steps-Small-bf16.json").read_text())
    wanted = [(case.name, form) for case in cases(0) for form in ("recurrence", "wy")]
    for part in ("steps", "layers"):
        assert [(one["case"], one["form"]) for one in found[part]] == wanted
    assert {one["step_ms"]["median"] for one in found["steps"]} == {1.0}
    assert {one["layer_ms"]["median"] for one in found["layers"]} == {1.0 / hybrid_steps.INSIDE}
    assert found["division"] == "system"
    one = next(one for one in found["bytes_to_take_back"] if one["case"] == "tree of 16 rows")
    assert one["snapshots"] == 16 * 2 * 8 * 8 * 4
    assert "tree of 64 rows" in text


def test_a_round_commits_what_its_case_says(
    clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the recurrent layers and their commits, counted."""
    monkeypatch.setattr(shapes, "HYBRID_SHAPES", {"Small": SMALL})
    from reference_mechanisms.engine.bench.engines import dummy_hybrid  # noqa: PLC0415 - behind the patch

    target = dummy_hybrid("Small", "bf16", 0, 5, torch.device("cpu"))
    kept: list[int] = []
    inner = delta.replay

    def counted(memory: object, log: object, path: torch.Tensor, count: torch.Tensor) -> None:
        kept.append(int(count))
        inner(memory, log, path, count)  # type: ignore[arg-type]

    exact = delta.TORCH_DELTA._replace(replay=counted)
    monkeypatch.setattr("reference_mechanisms.engine.lanes.delta_kernels_for", lambda device, dtype: exact)
    monkeypatch.setattr(hybrid_steps, "cases", lambda seed: [one for one in cases(seed) if one.rows <= 8])
    load = hybrid_steps.Load(context=5, rounds=2)
    list(hybrid_steps.step_times(target, load, clock))
    # A prompt, then two rounds to warm up and two that count, in each form.
    assert kept == 2 * [5, *[1] * 4] + 2 * [5, *[KEPT] * 4]


def test_a_wrong_call_is_refused(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers(), lambda run: run)
    words = ["engine", "bench-hybrid", "--out", str(tmp_path)]
    for more, said in ((["--rounds", "0"], "at least 1"), (["--shape", "x"], "no hybrid shape 'x'")):
        chosen = parser.parse_args([*words, *more])
        with pytest.raises(MechanismError, match=said):
            chosen.run(chosen)
