"""Drafts from many anchors of many sequences in one forward: what training and measuring share.

The networks are those that draft (`dflash.py`, `eagle3.py`); only the attention differs, which here is one
mask over whole sequences in place of a cache. An anchor at position p sees hidden states of 0 .. p - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.drafters.blocks import Reach, visible
from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.eagle3 import Eagle3

Embed = Callable[[Tensor], Tensor]  # ids [...] -> [..., hidden]
# (step, predicting rows [sequences, anchors, hidden]) -> tokens behind them [sequences, anchors]
Tokens = Callable[[int, Tensor], Tensor]


class Batch(NamedTuple):
    """Sequences side by side, padded behind."""

    token_ids: Tensor  # [sequences, positions]
    taps: Tensor  # [sequences, positions, taps x target hidden]
    anchors: Tensor  # positions [sequences, anchors], each at least 1


def block_rows(model: DFlash, batch: Batch, drafts: int, embed: Embed) -> Tensor:
    """Final hidden states of the rows that predict, [sequences, anchors, drafts, hidden]."""
    rows = model.config.rows(drafts)
    return block_hidden(model, batch, rows, embed)[:, :, rows - drafts :]


def block_hidden(model: DFlash, batch: Batch, rows: int, embed: Embed) -> Tensor:
    """Final hidden states of all rows of blocks, [sequences, anchors, rows, hidden].

    Args:
        model: DFlash, DFlash 2 or DSpark.
        batch: what to draft from.
        rows: of each block.
        embed: embeds tokens.
    """
    config = model.config
    sequences, positions, _ = batch.taps.shape
    anchors = batch.anchors.shape[1]
    device = batch.taps.device
    index = torch.arange(positions, device=device)
    context = model.context(batch.taps.flatten(0, 1), index.repeat(sequences))
    ids = batch.anchors.new_full((sequences * anchors, rows), config.mask_token)
    ids[:, 0] = batch.token_ids.gather(1, batch.anchors).flatten()
    at = batch.anchors[..., None] + torch.arange(rows, device=device)  # [sequences, anchors, rows]
    flat = at.flatten(1)
    block = torch.arange(anchors, device=device).repeat_interleave(rows)
    own = (block[:, None] == block[None]).expand(sequences, -1, -1)
    earlier = (index < batch.anchors[..., None]).repeat_interleave(rows, dim=1)
    may = torch.cat((earlier, own), dim=2)
    keys_at = torch.cat((index.expand(sequences, -1), flat), dim=1)
    masks = {reach: may & _visible(flat, keys_at, reach) for reach in set(config.reaches)}

    def attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        both = [
            torch.cat(
                (old.view(sequences, positions, *old.shape[1:]), new.reshape(sequences, -1, *new.shape[-2:])),
                1,
            )
            for old, new in zip(context[layer], (keys, values), strict=True)
        ]
        mine = queries.reshape(sequences, -1, *queries.shape[-2:])
        found = _attend(mine, both[0], both[1], masks[config.reaches[layer]])
        return found.view(sequences * anchors, rows, -1)

    hidden = model.hidden(embed(ids), at.flatten(0, 1), attention)
    return hidden.view(sequences, anchors, rows, -1)


def chain_rows(model: Eagle3, batch: Batch, drafts: int, embed: Embed, tokens: Tokens) -> Tensor:
    """Inputs of the head along chains, [sequences, anchors, drafts, hidden].

    Args:
        model: EAGLE-3.
        batch: what to draft from.
        drafts: of each chain.
        embed: embeds tokens.
        tokens: tells the token behind a row: the true one in training, the drafted one when measuring.
    """
    sequences, positions, _ = batch.taps.shape
    count = batch.anchors.shape[1]
    device = batch.taps.device
    index = torch.arange(positions, device=device)
    following = batch.token_ids.roll(-1, 1)  # the last row joins the first token: nothing may look at it
    own = torch.eye(count, dtype=torch.bool, device=device).expand(sequences, -1, -1)
    earlier = index < batch.anchors[..., None]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.layers]

    def whole(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        kept[layer].append((keys, values))
        return _attend(queries, keys, values, None)

    def chained(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        kept[layer].append((keys, values))
        mask = torch.cat((earlier, *(own for _ in kept[layer][1:])), dim=2)
        all_keys, all_values = (torch.cat(parts, dim=1) for parts in zip(*kept[layer], strict=True))
        return _attend(queries, all_keys, all_values, mask)

    features = model.fuse(batch.taps)
    first = model(features, embed(following), index.expand(sequences, -1), whole)
    last = (batch.anchors - 1)[..., None].expand(-1, -1, first.shape[-1])
    outputs = first.gather(1, last)
    rows = [model.normed(outputs)]
    for step in range(1, drafts):
        drafted = tokens(step - 1, rows[-1])
        outputs = model(model.handed_on(outputs), embed(drafted), batch.anchors - 1 + step, chained)
        rows.append(model.normed(outputs))
    return torch.stack(rows, dim=2)


def following_tokens(batch: Batch, drafts: int) -> Tensor:
    """The tokens that stand behind each anchor, [sequences, anchors, drafts]; 0 behind the end."""
    padded = F.pad(batch.token_ids, (0, drafts + 1))
    at = batch.anchors[..., None] + 1 + torch.arange(drafts, device=batch.anchors.device)
    return padded.gather(1, at.flatten(1)).view(at.shape)


def _visible(queries: Tensor, keys: Tensor, reach: Reach) -> Tensor:
    return torch.stack([visible(mine, theirs, reach) for mine, theirs in zip(queries, keys, strict=True)])


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of rows [sequences, rows, heads, head_dim]; without a mask causal."""
    shared = queries.shape[2] // keys.shape[2]
    keys, values = (part.repeat_interleave(shared, 2).transpose(1, 2) for part in (keys, values))
    found = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys,
        values,
        attn_mask=None if mask is None else mask[:, None],
        is_causal=mask is None,
    )
    return found.transpose(1, 2).flatten(2)


def trained_on(model: DFlash | Eagle3) -> tuple[int, ...]:
    """Layers of the target that a drafter taps.

    Raises:
        ValueError: an EAGLE-3 head that names none; give it explicit ones before training.
    """
    if model.config.taps is None:
        raise ValueError("the drafter names no taps")
    return model.config.taps
