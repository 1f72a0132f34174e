"""EAGLE-3 as a drafter of trees: one forward a level, for the best nodes of all requests.

Source: Li, Wei, Zhang, Zhang, EAGLE-2 (arXiv 2406.16858), for growing by levels; EAGLE-3 (arXiv 2503.01840).
A node's row joins its token with the output of its parent, and sees the committed context, its ancestors
and itself. Keys and values of the tree lie behind the context's length, level behind level, and the next
draft overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.blocks import attend
from reference_mechanisms.drafters.dflash import Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.verification.growing import Children, best_children

LEVEL_WIDTH = 10  # nodes of a level that are expanded, as in EAGLE-2


class LevelForwards:
    """Children of a node from a forward of its own; `verification.growing.Branching`."""

    def __init__(
        self,
        model: Eagle3,
        embed: Head,
        head: Head,
        contexts: Sequence[KVCache],
        newest: Tensor,
        count: int,
    ) -> None:
        """Begin behind the committed positions.

        Args:
            model: the network.
            embed: of tokens.
            head: of the logits.
            contexts: of each request; rows are written behind their lengths.
            newest: output row of the last committed position of each request, [requests, hidden].
            count: children of a node, at most.
        """
        self._model, self._embed, self._head, self._count = model, embed, head, count
        self._contexts = contexts
        self._ids = model.target_ids(newest.device)
        self._outputs = newest[:, None]
        self._starts = torch.tensor([context.length(0) for context in contexts], device=newest.device)
        self._seen = torch.zeros(len(newest), 1, 0, dtype=torch.bool, device=newest.device)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        if depth:
            self._outputs = self._level(depth, token_ids, parents)
        scores = self._head(self._model.normed(self._outputs)).float().log_softmax(-1)
        return best_children(scores, self._ids, self._count)

    def _level(self, depth: int, token_ids: Tensor, parents: Tensor) -> Tensor:
        """Output rows of the nodes of a level, [requests, nodes, hidden]."""
        nodes, up = token_ids.shape[1], parents[..., None]
        handed = self._model.handed_on(self._outputs)
        features = handed.gather(1, up.expand(-1, -1, handed.shape[-1]))
        above = self._seen.gather(1, up.expand(-1, -1, self._seen.shape[-1]))
        own = torch.eye(nodes, dtype=torch.bool, device=above.device).expand(len(above), -1, -1)
        self._seen = torch.cat((above, own), dim=-1)
        attention = _Attention(self._contexts, self._seen)
        positions = (self._starts + (depth - 1))[:, None].expand(-1, nodes)
        outputs: Tensor = self._model(features, self._embed(token_ids), positions, attention)
        return outputs


class _Attention:
    """`blocks.Attend` of one level: the context, and what each node sees of the tree."""

    def __init__(self, contexts: Sequence[KVCache], seen: Tensor) -> None:
        """`seen` is bool [requests, nodes, nodes of the tree so far], those of this level last."""
        self._nodes, drafted = seen.shape[1:]
        self._parts = []
        for context, mine in zip(contexts, seen, strict=True):
            start = context.length(0)
            keys, values, span = context.visible(0, start + drafted, 1)
            mask = torch.zeros(self._nodes, span, dtype=torch.bool, device=seen.device)
            mask[:, :start] = True
            mask[:, start : start + drafted] = mine
            writes = context.window(0, start + drafted - self._nodes, self._nodes)
            self._parts.append((writes, keys, values, mask))

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values [requests, nodes, kv_heads, head_dim]; attend with queries."""
        found = []
        both = torch.cat((keys, values), dim=-2)
        for (writes, seen_keys, seen_values, mask), asks, own in zip(self._parts, queries, both, strict=True):
            writes[layer].copy_(own.transpose(0, 1))
            found.append(attend(asks, seen_keys[layer][0], seen_values[layer][0], mask))
        return torch.stack(found)
