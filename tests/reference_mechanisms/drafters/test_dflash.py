from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import Reach, visible
from reference_mechanisms.drafters.context import ContextAttention, Span, commit, new_context
from reference_mechanisms.drafters.dflash import DFlash
from tests.reference_mechanisms.drafters.networks import (
    FULL,
    HIDDEN,
    SIZES,
    SLIDING,
    VOCAB,
    dflash,
    dflash2,
    dspark,
    ends,
    random_taps,
)
from tests.reference_mechanisms.drafters.trained_rows import block_states

NETWORKS: dict[str, Callable[[], DFlash]] = {
    "dflash": lambda: dflash(FULL, 5),
    "dflash, sliding and causal layers": lambda: dflash(SLIDING, 9),
    "dflash, anchor row": lambda: dflash(FULL, 5, anchor_row=True),
    "dflash2": lambda: dflash2(FULL, 5),
    "dflash2, sliding and causal layers": lambda: dflash2(SLIDING, 9),
    "dspark": lambda: dspark(FULL, 4),
    "dspark, sliding and causal layers": lambda: dspark(SLIDING, 8),
}
ANCHORS = (1, 6, 6, 13)


def blocks(network: DFlash, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(ANCHORS), network.config.block), network.config.mask_token)
    ids[:, 0] = torch.randint(VOCAB, (len(ANCHORS),), generator=generator)
    return ends().embed(ids)


def cached(network: DFlash, taps: Tensor, embeddings: Tensor) -> Tensor:
    """The same blocks as a ragged batch of requests, each with a cache that grew in two parts."""
    config = network.config
    contexts, device = [], torch.device("cpu")
    for anchor in ANCHORS:
        context = new_context(config.sizes, len(config.reaches), 40, torch.float64, device)
        for window in context.window(0, 0, context.capacity):
            window.fill_(7.0)  # rows of a draft that was rejected
        for first, last in ((0, anchor // 2), (anchor // 2, anchor)):
            positions = torch.arange(first, last)
            if len(positions):
                commit(context, network.context(taps[first:last], positions))
        contexts.append(context)
    rows = config.block
    attention = ContextAttention(
        [Span(context, context.length(0), rows) for context in contexts], config.reaches, device
    )
    positions = torch.tensor(ANCHORS)[:, None] + torch.arange(rows)
    found = network.hidden(embeddings, positions, attention)
    assert [context.length(0) for context in contexts] == list(ANCHORS)
    return found


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_the_training_forward_is_the_cached_one(make: Callable[[], DFlash]) -> None:
    network = make()
    taps, embeddings = random_taps(15), blocks(network)
    trained = block_states(network, taps, embeddings, torch.tensor(ANCHORS))
    torch.testing.assert_close(trained, cached(network, taps, embeddings), rtol=0, atol=1e-12)


def test_no_block_sees_another_or_a_position_at_or_behind_its_anchor() -> None:
    network = dflash(FULL, 5)
    taps, embeddings = random_taps(15), blocks(network)
    before = block_states(network, taps, embeddings, torch.tensor(ANCHORS))
    taps[6:], embeddings[3] = 9.0, 5.0
    after = block_states(network, taps, embeddings, torch.tensor(ANCHORS))
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3], after[3])


@pytest.mark.parametrize("causal", [False, True])
def test_the_first_row_sees_the_last_unless_layers_are_causal(causal: bool) -> None:
    network = dflash((Reach(causal=causal), Reach(causal=causal)), 5)
    embeddings = blocks(network)
    before = block_states(network, random_taps(15), embeddings, torch.tensor(ANCHORS))
    embeddings[:, -1] += 1.0
    after = block_states(network, random_taps(15), embeddings, torch.tensor(ANCHORS))
    assert torch.equal(before[:, 1], after[:, 1]) == causal


def test_a_window_counts_the_row_itself() -> None:
    at = torch.arange(6)
    assert visible(at, at, Reach(causal=True, window=3))[5].tolist() == [False] * 3 + [True] * 3
    assert visible(at, at, Reach(window=2))[2].tolist() == [False, True, True, True, False, False]


def norm(x: Tensor, weight: Any) -> Tensor:
    scaled: Tensor = x / (x.pow(2).mean() + SIZES.norm_eps).sqrt() * weight.weight
    return scaled


def turned(head: Tensor, position: int) -> Tensor:
    """Rotation as a product of complex numbers."""
    half = len(head) // 2
    rates = torch.tensor([100.0 ** (-n / half) for n in range(half)], dtype=torch.float32)
    phase = (position * rates).double()
    spun = torch.complex(head[:half], head[half:]) * torch.polar(torch.ones_like(phase), phase)
    return torch.cat((spun.real, spun.imag))


def naive(network: Any, taps: Tensor, embeddings: Tensor) -> Tensor:
    """One block behind `taps`, row by row and head by head."""
    length, hidden = len(taps), embeddings.clone()
    side = [norm(network.fc(row), network.hidden_norm) for row in taps]
    for layer in network.layers:
        attention = layer.self_attn
        normed = [norm(row, layer.input_layernorm) for row in hidden]
        keys, values = [], []
        for position, row in enumerate([*side, *normed]):
            heads = attention.k_proj(row).view(SIZES.kv_heads, -1)
            keys.append([turned(norm(head, attention.k_norm), position) for head in heads])
            values.append(attention.v_proj(row).view(SIZES.kv_heads, -1))
        for number, row in enumerate(normed):
            heads = attention.q_proj(row).view(SIZES.heads, -1)
            outputs = []
            for index, head in enumerate(heads):
                mine = index // (SIZES.heads // SIZES.kv_heads)
                query = turned(norm(head, attention.q_norm), length + number)
                scores = torch.stack([query @ key[mine] for key in keys]) / math.sqrt(SIZES.head_dim)
                weights = scores.softmax(0)
                outputs.append(sum(w * value[mine] for w, value in zip(weights, values, strict=True)))
            hidden[number] += attention.o_proj(torch.cat(outputs))
        for number in range(len(hidden)):
            row = norm(hidden[number], layer.post_attention_layernorm)
            gate = layer.mlp.gate_proj(row)
            gated = gate * gate.sigmoid() * layer.mlp.up_proj(row)
            hidden[number] += layer.mlp.down_proj(gated)
    return torch.stack([norm(row, network.norm) for row in hidden])


def test_the_network_is_the_one_of_the_paper() -> None:
    network = dflash(FULL, 4)
    taps, embeddings = random_taps(6), blocks(network)[0]
    found = block_states(network, taps, embeddings[None], torch.tensor([6]))[0]
    torch.testing.assert_close(found, naive(network, taps, embeddings), rtol=0, atol=1e-6)
    assert found.shape == (4, HIDDEN)


def test_rows_and_drafts_follow_the_convention() -> None:
    plain, anchored = dflash(block=8).config, dflash(block=7, anchor_row=True).config
    assert (plain.drafts, plain.rows(plain.drafts), plain.rows(3)) == (7, 8, 4)
    assert (anchored.drafts, anchored.rows(anchored.drafts), anchored.rows(3)) == (7, 7, 3)
