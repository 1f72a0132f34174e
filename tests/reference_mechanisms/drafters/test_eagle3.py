from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.context import ContextAttention, Span, new_context
from reference_mechanisms.drafters.eagle3 import Eagle3
from tests.reference_mechanisms.drafters.networks import SIZES, TARGET_HIDDEN, VOCAB, eagle3, random_taps
from tests.reference_mechanisms.drafters.trained_rows import chain_states

CPU = torch.device("cpu")
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "normed residual": {"norm_before_residual": True},
    "norm of each tap": {"norm_each_tap": True},
    "norm before fc": {"norm_before_fc": True},
    "normed output": {"norm_output": True},
}


def ids(count: int, seed: int = 4) -> Tensor:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def embedded(network: Eagle3, tokens: Tensor) -> Tensor:
    assert network.embed_tokens is not None
    found: Tensor = network.embed_tokens(tokens)
    return found


def chain(network: Eagle3, taps: Tensor, tokens: Tensor, start: int, steps: int) -> Tensor:
    """Normed rows of the chain behind position `start`, through a cache, forced along `tokens`."""
    context = new_context(SIZES, network.config.layers, 64, torch.float64, CPU)
    reaches = network.config.reaches
    features = network.fuse(taps[: start + 1])
    attention = ContextAttention([Span(context, 0, start + 1)], reaches, CPU)
    given = embedded(network, tokens[1 : start + 2])
    outputs = network(features, given, torch.arange(start + 1), attention)[-1:]
    context.commit(0, start + 1)
    rows = [network.normed(outputs)]
    for step in range(1, steps):
        attention = ContextAttention([Span(context, start + step, 1)], reaches, CPU)
        given = embedded(network, tokens[start + step + 1][None])
        outputs = network(network.handed_on(outputs), given, torch.tensor([start + step]), attention)
        rows.append(network.normed(outputs))
    return torch.cat(rows)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_the_training_forward_is_the_cached_chain(flags: dict[str, bool], layers: int) -> None:
    network = eagle3(layers=layers, **flags)
    taps, tokens = random_taps(9), ids(13)
    trained = chain_states(network, taps, tokens, 4, lambda found: embedded(network, found))
    for start in range(9):
        torch.testing.assert_close(
            trained[:, start], chain(network, taps, tokens, start, 4), rtol=0, atol=1e-12
        )


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + SIZES.norm_eps).sqrt() * weight


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_one_row_follows_the_formula(flags: dict[str, bool]) -> None:
    """At a single position attention is its own value."""
    network: Any = eagle3(**flags)
    taps, token = random_taps(1), ids(1)
    parts = taps
    if flags.get("norm_each_tap"):
        weights = torch.cat([one.weight for one in network.fc_norm])
        low, high = taps[:, :TARGET_HIDDEN], taps[:, TARGET_HIDDEN:]
        ones = torch.ones(TARGET_HIDDEN, dtype=torch.float64)
        parts = torch.cat((norm(low, ones), norm(high, ones)), dim=1) * weights
    if flags.get("norm_before_fc"):
        parts = norm(taps, network.input_norm.weight)
    feature = parts @ network.fc.weight.T
    layer = network.layers[0]
    normed = norm(feature, layer.hidden_norm.weight)
    first = norm(embedded(network, token), layer.input_layernorm.weight)
    value = torch.cat((first, normed), dim=1) @ layer.self_attn.v_proj.weight.T
    heads = value.view(SIZES.kv_heads, -1).repeat_interleave(SIZES.heads // SIZES.kv_heads, 0)
    residual = normed if flags.get("norm_before_residual") else feature
    hidden = residual + heads.flatten() @ layer.self_attn.o_proj.weight.T
    inner = norm(hidden, layer.post_attention_layernorm.weight)
    gate = inner @ layer.mlp.gate_proj.weight.T
    up = inner @ layer.mlp.up_proj.weight.T
    hidden = hidden + (gate * gate.sigmoid() * up) @ layer.mlp.down_proj.weight.T
    found = chain_states(network, taps, token.repeat(2), 1, lambda asked: embedded(network, asked))[0]
    torch.testing.assert_close(found, norm(hidden, network.norm.weight), rtol=0, atol=1e-12)
    handed = norm(hidden, network.norm.weight) if flags.get("norm_output") else hidden
    torch.testing.assert_close(network.handed_on(hidden), handed, rtol=0, atol=1e-12)


def test_every_layer_is_causal() -> None:
    assert eagle3(layers=2).config.reaches == (Reach(causal=True),) * 2


def test_a_smaller_vocabulary_is_mapped_by_offsets() -> None:
    network = eagle3(draft_vocab=4)
    assert network.vocabulary is not None
    network.vocabulary.d2t.copy_(torch.tensor([0, 2, 5, 9]))
    assert network.target_ids(CPU).tolist() == [0, 3, 7, 12]
    assert network.lm_head is not None
    assert network.lm_head.weight.shape[0] == 4
