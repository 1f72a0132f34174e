from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from reference_mechanisms.targets.llama import KEY_BUCKET, LlamaTarget
from reference_mechanisms.targets.loading import load_target
from tests.reference_mechanisms.targets.hybrids import (
    PREFIXES,
    chain,
    in_pieces,
    stock_hybrid,
    stock_prefill,
    stock_steps,
    verified,
    write_hybrid,
)
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids, write_model

LENGTH = 68  # over the end of one of stock's chunks of 64
# Of the largest logit. Stock against itself, steps against prefill, measures 3e-7 to 5e-7.
TOLERANCE = 2e-6
# In float64 what is left is the order of float32 sums inside the state and the norms.
STATE_TOLERANCE = 3e-7

MODELS: dict[str, dict[str, Any]] = {
    "qwen3-next": {},
    "qwen3-next, one value head a key head": {"linear_num_value_heads": 2},
    "qwen3-next, four value heads a key head": {"linear_num_value_heads": 8},
    "qwen3-next, one key head": {"linear_num_key_heads": 1},
    "qwen3-next, tied, biases": {"tie_word_embeddings": True, "attention_bias": True},
    "qwen3-next, every layer dense by name": {"num_experts": 4, "mlp_only_layers": [0, 1, 2, 3]},
    "qwen3-next, half heads rotated, shards": {"partial_rotary_factor": 0.5, "shard": "8KB"},
    "qwen3-next, attention first": {"layer_types": ["full_attention", *["linear_attention"] * 3]},
    "qwen3-next, kernel of two": {"linear_conv_kernel_dim": 2},
    "qwen3.5": {"family": "qwen3_5"},
    "qwen3.5, one value head a key head": {"family": "qwen3_5", "linear_num_value_heads": 2},
    "qwen3.5, four value heads a key head": {"family": "qwen3_5", "linear_num_value_heads": 8},
    "qwen3.5, text of a model that sees": {"family": "qwen3_5_vision"},
    "qwen3.5, text of a tied model that sees": {"family": "qwen3_5_vision", "tie_word_embeddings": True},
}


class Pair(NamedTuple):
    """A folder, a sequence, and what stock says about it in float32."""

    folder: Path
    ids: list[int]
    target: HybridTarget
    prefill: Tensor  # [LENGTH, VOCAB]
    steps: Tensor


SELDOM = (  # the other family has the same heads
    "qwen3-next, one value head a key head",
    "qwen3-next, one key head",
    "qwen3.5, four value heads a key head",
    "qwen3.5, text of a tied model that sees",
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(changes, id=name, marks=pytest.mark.slow if name in SELDOM else ())
        for name, changes in MODELS.items()
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = write_hybrid(tmp_path_factory.mktemp("hybrid"), **request.param)
    ids, stock = random_ids(LENGTH), stock_hybrid(folder, torch.float32)
    target = load_hybrid(folder, torch.float32, CPU)
    return Pair(folder, ids, target, stock_prefill(stock, ids), stock_steps(stock, ids))


def difference(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def test_prefill_is_that_of_stock(pair: Pair) -> None:
    found = in_pieces(pair.target, pair.target.new_cache(1, LENGTH), pair.ids, [LENGTH])
    assert difference(found, pair.prefill) <= TOLERANCE


def test_one_token_steps_are_those_of_stock(pair: Pair) -> None:
    found = in_pieces(pair.target, pair.target.new_cache(1, LENGTH), pair.ids, [1] * LENGTH)
    assert difference(found, pair.steps) <= TOLERANCE


def test_steps_behind_a_prefill_are_those_of_stock(pair: Pair) -> None:
    found = in_pieces(pair.target, pair.target.new_cache(1, LENGTH), pair.ids, [30] + [1] * (LENGTH - 30))
    assert difference(found, pair.steps) <= TOLERANCE


def test_in_float64_nothing_is_left_but_the_states_own_rounding(pair: Pair) -> None:
    ids = pair.ids[:30]
    wanted = stock_steps(stock_hybrid(pair.folder, torch.float64), ids)
    target = load_hybrid(pair.folder, torch.float64, CPU)
    found = in_pieces(target, target.new_cache(1, 30), ids, [30])
    assert found.dtype == torch.float64
    assert difference(found, wanted) <= STATE_TOLERANCE


def test_a_prompt_cut_anywhere_gives_the_same_bits(pair: Pair) -> None:
    ids, target = pair.ids[:24], pair.target
    cache = target.new_cache(1, 24)
    whole = in_pieces(target, cache, ids, [24])
    assert difference(whole, pair.prefill[:24]) <= TOLERANCE
    for split in (1, 2, 3, 4, 5, 8, 13, 16, 20, 23):  # the convolution looks three positions back
        cache.clear(0)
        assert torch.equal(in_pieces(target, cache, ids, [split, 24 - split]), whole), f"cut at {split}"


def test_a_random_model_is_worth_comparing_with(pair: Pair) -> None:
    # Flat logits, or the same at every position, would agree however wrong the layers were.
    assert pair.prefill.std() > 0.1
    assert pair.prefill.std(0).mean() > 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("tapped"))


def test_positions_over_the_end_of_a_key_bucket_are_those_of_stock(folder: Path) -> None:
    ids, target = random_ids(KEY_BUCKET + 14), load_hybrid(folder, torch.float32, CPU)
    found = in_pieces(target, target.new_cache(1, len(ids)), ids, [KEY_BUCKET - 3, 1, 16])
    assert difference(found, stock_prefill(stock_hybrid(folder, torch.float32), ids)) <= TOLERANCE


def test_a_tap_is_the_residual_stream_after_its_layer_and_minus_one_is_the_embedding(folder: Path) -> None:
    ids = random_ids(20)
    with torch.inference_mode():
        stock = stock_hybrid(folder, torch.float64)
        wanted = stock(torch.tensor([ids]), output_hidden_states=True).hidden_states
    target = load_hybrid(folder, torch.float64, CPU)
    cache = target.new_cache(1, 20)
    found = target.forward(chain(cache, ids), cache, taps=(1, -1, 0))
    for tap, offset in zip(found.taps, (2, 0, 1), strict=True):
        torch.testing.assert_close(tap, wanted[offset][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found.hidden, wanted[4][0], rtol=0, atol=1e-5)


# loading


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def change(folder: Path, tensors: dict[str, Tensor], **fields: Any) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("family", list(PREFIXES))
def test_every_tensor_is_needed(tmp_path: Path, family: str) -> None:
    folder = write_hybrid(tmp_path, family, attention_bias=True, num_hidden_layers=4)
    tensors = stored(folder)
    needed = [name for name in tensors if "visual" not in name]
    # The first layer of each kind, and what is outside the layers.
    layers = re.compile(r"\.layers\.[12]\.")
    needed = [name for name in needed if not layers.search(name)]
    assert len(needed) > 20
    for name in needed:
        change(folder, {key: value for key, value in tensors.items() if key != name})
        with pytest.raises(TargetError, match=rf"tensor {re.escape(name)} is missing"):
            load_hybrid(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("model.layers.4.mlp.up_proj.weight", "qwen3_next"),
        ("model.layers.0.linear_attn.conv1d.bias", "qwen3_next"),
        ("model.layers.0.self_attn.q_proj.weight", "qwen3_next"),
        ("model.layers.3.self_attn.q_proj.bias", "qwen3_5"),
        ("model.layers.0.mlp.experts.gate_up_proj", "qwen3_next"),
        ("model.visual.merger.norm.weight", "qwen3_5"),
    ],
)
def test_a_tensor_without_a_place_is_named(tmp_path: Path, name: str, family: str) -> None:
    folder = write_hybrid(tmp_path, family)
    change(folder, stored(folder) | {name: torch.zeros(3)})
    with pytest.raises(TargetError, match=rf"tensor {re.escape(name)} \(1 in all\) has no place"):
        load_hybrid(folder, torch.float32, CPU)


def test_the_built_in_drafter_is_no_part_of_the_target(tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path)
    change(folder, stored(folder) | {"mtp.fc.weight": torch.zeros(3)})
    load_hybrid(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.linear_attn.in_proj_qkvz.weight", (103, 64)),
        ("model.layers.0.linear_attn.conv1d.weight", (64, 1, 3)),
        ("model.layers.0.linear_attn.A_log", (2,)),
        ("model.layers.3.self_attn.q_proj.weight", (64, 64)),
    ],
)
def test_a_tensor_of_another_shape_is_named(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    folder = write_hybrid(tmp_path)
    change(folder, stored(folder) | {name: torch.zeros(shape)})
    with pytest.raises(TargetError, match=rf"{re.escape(name)} has shape {re.escape(str(shape))}, config"):
        load_hybrid(folder, torch.float32, CPU)


def test_a_tied_model_that_stores_another_head_is_refused(tmp_path: Path) -> None:
    folder = write_hybrid(tmp_path)
    change(folder, stored(folder), tie_word_embeddings=True)
    with pytest.raises(TargetError, match=r"tie_word_embeddings`, but lm_head\.weight is stored and differs"):
        load_hybrid(folder, torch.float32, CPU)


def test_a_target_is_loaded_by_its_architecture(tmp_path: Path, folder: Path) -> None:
    assert isinstance(load_target(folder, torch.float32, CPU), HybridTarget)
    assert isinstance(load_target(write_model(tmp_path), torch.float32, CPU), LlamaTarget)


def test_an_unknown_architecture_is_refused_with_all_that_are_known(tmp_path: Path) -> None:
    write_model(tmp_path)
    change(tmp_path, stored(tmp_path), architectures=["MistralForCausalLM"])
    with pytest.raises(
        TargetError, match="LlamaForCausalLM, Qwen3ForCausalLM, Qwen3NextForCausalLM, Qwen3_5"
    ):
        load_target(tmp_path, torch.float32, CPU)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_everything_but_the_state_is_computed_in_the_type_asked_for(folder: Path, dtype: torch.dtype) -> None:
    target = load_hybrid(folder, dtype, CPU)
    cache = target.new_cache(1, 4)
    ids: Sequence[int] = [1, 2]
    assert verified(target, cache, ids).dtype == dtype
    cache.commit(0, 2)
    memory, window = cache.state(0, 0)
    assert (memory.dtype, window.dtype) == (torch.float32, dtype)
    assert target.config.vocab_size == VOCAB


def test_in_bfloat16_rounding_is_that_of_stock(folder: Path) -> None:
    ids, target = random_ids(30), load_hybrid(folder, torch.bfloat16, CPU)
    found = in_pieces(target, target.new_cache(1, 30), ids, [30])
    wanted = stock_steps(stock_hybrid(folder, torch.bfloat16), ids)
    exact = stock_steps(stock_hybrid(folder, torch.float32), ids)
    # Not further from the truth than stock itself is.
    assert difference(found.float(), exact) <= 1.5 * difference(wanted.float(), exact)
