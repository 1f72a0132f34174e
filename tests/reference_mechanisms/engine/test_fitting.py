"""What a deployment takes is known before it is loaded, and a deployment that does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from reference_mechanisms.batching.bench.shapes import shape_of
from reference_mechanisms.engine.fitting import Needs, WeightFormat, check_fit, hybrid_weights, needs_of
from reference_mechanisms.errors import TargetError
from reference_mechanisms.kernels.weight12.models import MODELS
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.shapes import SHAPES, shape_config
from tests.reference_mechanisms.engine.bench import small


class Counting(DummyCheckpoint):
    """Counts the numbers that are taken."""

    taken = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = super().take(name, shape, dtype)
        self.taken += found.numel()
        return found


@pytest.mark.parametrize("qk_norm", [False, True])
def test_weights_are_counted_to_the_last(qk_norm: bool) -> None:
    config = small.config(qk_norm=qk_norm)
    source = Counting("counted", 0, torch.device("cpu"))
    LlamaTarget(config, source, torch.float32, torch.device("cpu"))
    needs = needs_of(config, "bf16", positions=1, rows=1)
    repeated = config.layers * (config.heads + config.kv_heads - 2) * config.head_dim * qk_norm
    assert needs.weights == 2 * (source.taken + repeated)


def test_a_cache_is_counted_to_the_last() -> None:
    config = small.config()
    cache = LlamaTarget(
        config, DummyCheckpoint("c", 0, torch.device("cpu")), torch.bfloat16, torch.device("cpu")
    ).new_cache(1, 512)
    stored = sum(place.nbytes for place in cache.window(0, 0, cache.capacity))
    assert needs_of(config, "bf16", positions=512, rows=1).cache == stored


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen3-4B", "Llama-3.1-8B"])
def test_published_shapes_have_the_products_whose_times_are_reported(name: str) -> None:
    config = shape_config(name)
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = ((query + 2 * key, hidden), (hidden, query), (2 * inner, hidden), (hidden, inner))
    assert MODELS[name].step == (*layer * config.layers, (config.vocab_size, hidden))


def test_a_packed_target_takes_less() -> None:
    for name in SHAPES:
        packed, plain = (needs_of(shape_config(name), kind, positions=600, rows=16) for kind in FORMATS)
        assert packed.weights < 0.77 * plain.weights
        assert packed.cache == plain.cache


FORMATS: tuple[WeightFormat, ...] = ("weight12", "bf16")


def test_a_deployment_that_does_not_fit_is_refused_with_its_bytes() -> None:
    needs = Needs(weights=100, cache=20, graphs=7, loading=30)
    check_fit(needs, 130, "a target")
    with pytest.raises(TargetError) as refused:
        check_fit(needs, 129, "a target")
    for told in ("a target", "weights take 100", "cache 20", "graphs 7", "loading 30", "130", "129 are free"):
        assert told in str(refused.value)


def test_two_deployments_are_loaded_one_behind_the_other() -> None:
    both = Needs(weights=1, cache=2, graphs=3, loading=9) + Needs(weights=10, cache=20, graphs=30, loading=5)
    assert both == Needs(weights=11, cache=22, graphs=33, loading=9)


def test_plain_float32_takes_four_bytes_and_a_tied_head_none() -> None:
    tied = small.config(tied_head=True)
    source = Counting("counted", 0, torch.device("cpu"))
    LlamaTarget(tied, source, torch.float32, torch.device("cpu"))
    needs = needs_of(tied, "bf16", positions=1, rows=1, number=4)
    repeated = tied.layers * (tied.heads + tied.kv_heads - 2) * tied.head_dim * tied.qk_norm
    assert needs.weights == 4 * (source.taken + repeated)


def test_a_hybrid_is_counted_with_its_states() -> None:
    config = shape_of("hybrid-27b").target
    one, eight = (needs_of(config, "weight12", positions=600, rows=16, slots=slots) for slots in (1, 8))
    assert one.weights == eight.weights == int(hybrid_weights(config) * 12.125 / 8)  # type: ignore[arg-type]
    assert eight.cache - one.cache == 7 * 48 * 48 * 128 * 128 * 4
    assert one.cache - 48 * 48 * 128 * 128 * 4 == 600 * 16 * 2 * 4 * 256 * 2
