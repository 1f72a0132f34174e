from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.utils import logging

from harness.backends.transformers_scorer import TransformersScorer, open_scorer
from harness.codec import canonical_json, from_json
from harness.errors import InvalidRun, ModelError
from harness.models import ModelFolder, resolve_model
from harness.plan import Deployment, ModelSpec
from tests.harness.tiny import VOCAB, write_llama, write_tokenizer

PROMPT = (256, 72, 105, 33, 10)
IDS = tuple(range(60, 83))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models run faster on one thread, and far faster on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelFolder:
    return resolve_model(ModelSpec(path=str(folder)))


@pytest.fixture(scope="module")
def exact(model: ModelFolder) -> TransformersScorer:
    return TransformersScorer(model, dtype="float64")


def whole(scorer: TransformersScorer, ids: Sequence[int], rows: int | None) -> npt.NDArray[np.float32]:
    return np.concatenate(list(scorer.logits(PROMPT, ids, rows)))


def deployment(folder: Path, **more: object) -> Deployment:
    fields = {"schema": "deployment/1", "name": "tiny", "device": "cpu", "context_length": 64} | more
    return Deployment(target=ModelSpec(path=str(folder), dtype="float32"), **fields)  # type: ignore[arg-type]


def test_logits_are_those_of_one_plain_forward_without_a_cache(
    folder: Path, exact: TransformersScorer
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.inference_mode():
        found = plain(torch.tensor([[*PROMPT, *IDS]]), use_cache=False).logits[0]
    expected = found[len(PROMPT) - 1 : -1].float().numpy()
    assert whole(exact, IDS, None).shape == (len(IDS), VOCAB)
    np.testing.assert_allclose(whole(exact, IDS, None), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 100])
def test_every_shape_forces_the_same_positions(exact: TransformersScorer, rows: int) -> None:
    np.testing.assert_allclose(whole(exact, IDS, rows), whole(exact, IDS, None), atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("rows", [None, 1, 8])
def test_short_outputs_are_scored_whole(exact: TransformersScorer, count: int, rows: int | None) -> None:
    assert whole(exact, IDS[:count], rows).shape == (count, VOCAB)
    np.testing.assert_allclose(whole(exact, IDS[:count], rows), whole(exact, IDS, None)[:count], atol=1e-6)


def test_nothing_is_yielded_for_no_tokens(exact: TransformersScorer) -> None:
    assert list(exact.logits(PROMPT, (), None)) == []


def test_the_verify_shape_has_the_rows_asked_for(exact: TransformersScorer) -> None:
    assert [len(chunk) for chunk in exact.logits(PROMPT, IDS, 8)] == [1, 8, 8, 6]
    assert [len(chunk) for chunk in exact.logits(PROMPT, IDS, 1)] == [1] * len(IDS)


def test_a_long_output_comes_in_bounded_chunks_with_the_same_logits(
    model: ModelFolder, exact: TransformersScorer
) -> None:
    bounded = TransformersScorer(model, dtype="float64", chunk_bytes=5 * 4 * VOCAB)
    chunks = list(bounded.logits(PROMPT, IDS, None))
    assert [len(chunk) for chunk in chunks] == [5, 5, 5, 5, 3]
    np.testing.assert_allclose(np.concatenate(chunks), whole(exact, IDS, None), atol=1e-6)


def test_greedy_gives_each_token_with_the_logits_it_is_the_argmax_of(exact: TransformersScorer) -> None:
    taken = list(islice(exact.greedy(PROMPT), 12))
    ids = [token for token, _ in taken]
    assert ids == [int(row.argmax()) for _, row in taken]
    assert len(set(ids)) > 3, "a constant output would prove little"
    stepped = whole(exact, ids, 1)
    assert all(np.array_equal(row, step) for (_, row), step in zip(taken, stepped, strict=True))


def test_a_changed_context_changes_the_logits(exact: TransformersScorer) -> None:
    changed = whole(exact, (IDS[0] + 1, *IDS[1:]), None)
    assert np.array_equal(changed[0], whole(exact, IDS, None)[0])
    assert np.abs(changed[1:] - whole(exact, IDS, None)[1:]).max() > 1e-3


def test_bfloat16_is_computed_in_bfloat16(model: ModelFolder, exact: TransformersScorer) -> None:
    rough = TransformersScorer(model, dtype="bfloat16")
    difference = np.abs(whole(rough, IDS, None) - whole(exact, IDS, None)).max()
    assert 1e-4 < difference < 1.0
    assert rough.describe()["dtype"] == "bfloat16"


def test_the_description_names_what_can_change_a_rounding(
    exact: TransformersScorer, model: ModelFolder
) -> None:
    told = exact.describe()
    assert told["implementation"] == "transformers.LlamaForCausalLM"
    assert from_json(canonical_json(told), dict, "told") == told, "a report can hold it"
    assert told["torch"] == str(torch.__version__)
    assert told["weights_sha256"] == model.sha256
    assert told["threads"] == torch.get_num_threads()
    assert told["device"]


def test_loading_leaves_the_progress_bars_of_transformers_as_they_were(model: ModelFolder) -> None:
    assert logging.is_progress_bar_enabled()
    TransformersScorer(model, dtype="float32")
    assert logging.is_progress_bar_enabled()


def test_a_deployment_is_opened_in_its_dtype(folder: Path) -> None:
    assert open_scorer(deployment(folder)).describe()["dtype"] == "float32"


def test_the_threads_of_the_deployment_are_set(folder: Path) -> None:
    try:
        assert open_scorer(deployment(folder, threads=2)).describe()["threads"] == 2
    finally:
        torch.set_num_threads(1)


def test_a_context_longer_than_the_model_was_made_for_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="257 of deployment tiny exceeds the 256 positions"):
        open_scorer(deployment(folder, context_length=257))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_makes_the_run_invalid(folder: Path) -> None:
    with pytest.raises(InvalidRun, match="CUDA"):
        open_scorer(deployment(folder, device="cuda"))


@pytest.mark.slow
def test_a_hybrid_target_keeps_its_recurrent_state_between_passes(tmp_path: Path) -> None:
    config = Qwen3NextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        mlp_only_layers=[0, 1],
        num_experts=0,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3NextForCausalLM(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    scorer = TransformersScorer(resolve_model(ModelSpec(path=str(tmp_path))), dtype="float64")
    reference = whole(scorer, IDS, None)
    assert np.abs(reference).max() > 0.1
    for rows in (1, 4):
        np.testing.assert_allclose(whole(scorer, IDS, rows), reference, atol=1e-4)


def test_a_chunk_holds_at_least_one_position_however_large_the_vocabulary(model: ModelFolder) -> None:
    huge = dataclasses.replace(model, vocab_size=10**9)
    assert [len(c) for c in TransformersScorer(huge, dtype="float32").logits(PROMPT, IDS[:3], None)] == [
        1,
        1,
        1,
    ]
