"""DFlash: drafts a whole block in one forward, from the target's hidden states as keys and values.

Source: Chen, Liang, Liu, "DFlash: Block Diffusion for Flash Speculative Decoding", arXiv 2602.06036.

A block is the anchor (the newest token) and mask tokens. Tapped hidden states of all committed positions
in front of the anchor, joined by `fc`, are side input: every layer makes keys and values from them and
from the block's own rows, with the same weights. In the plain convention row k predicts the token k
positions behind the anchor, and row 0 nothing; with `anchor_row` each row predicts the token behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.blocks import (
    Attend,
    DraftVocabulary,
    Layer,
    Reach,
    RMSNorm,
    Sizes,
    per_layer,
)
from reference_mechanisms.drafters.rotation import Rope, rotation
from reference_mechanisms.verification.growing import Branching, Marginals

Head = Callable[[Tensor], Tensor]  # normed rows [..., hidden] -> logits [..., draft vocabulary]
# (draft index, scores [requests, candidates], their target ids [candidates] or [requests, candidates])
# -> chosen target ids [requests]
Pick = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """A drafter that fills blocks."""

    sizes: Sizes
    reaches: tuple[Reach, ...]  # of each layer
    rope: Rope
    target_hidden: int
    taps: tuple[int, ...]
    block: int  # rows it was trained with
    anchor_row: bool  # row 0 predicts too
    mask_token: int
    vocab_size: int  # of the target
    draft_vocab_size: int | None = None  # None: the target's
    own_embedding: bool = False  # stored with the drafter, not taken from the target
    own_head: bool = False
    target_layers: int | None = None  # of the target it was trained for, where the checkpoint tells

    @property
    def drafts(self) -> int:
        """Draft tokens of a trained block."""
        return self.block if self.anchor_row else self.block - 1

    def rows(self, drafts: int) -> int:
        """Rows of a block that gives this many draft tokens."""
        return drafts if self.anchor_row else drafts + 1


class Drafted(NamedTuple):
    """Draft tokens of a batch."""

    token_ids: Tensor  # [requests, drafts]
    confidence_logits: Tensor | None = None  # of each being accepted once all before it are


class DFlash(nn.Module):
    """The network of DFlash, and the backbone of DFlash 2 and DSpark."""

    config: BlockConfig

    def __init__(self, config: BlockConfig) -> None:
        """Weights under their published names."""
        super().__init__()
        self.config = config
        sizes = config.sizes
        self.fc = nn.Linear(len(config.taps) * config.target_hidden, sizes.hidden, bias=False)
        self.hidden_norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.layers = nn.ModuleList(self.new_layer() for _ in config.reaches)
        self.norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        draft_vocabulary = config.draft_vocab_size or config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, sizes.hidden) if config.own_embedding else None
        self.lm_head = nn.Linear(sizes.hidden, draft_vocabulary, bias=False) if config.own_head else None
        self.vocabulary = DraftVocabulary(draft_vocabulary) if config.draft_vocab_size else None

    def new_layer(self) -> nn.Module:
        """One decoder layer."""
        return Layer(self.config.sizes)

    def target_ids(self, device: torch.device) -> Tensor:
        """Target id of each column of the logits."""
        if self.vocabulary is None:
            return torch.arange(self.config.vocab_size, device=device)
        return self.vocabulary.target_ids()

    def context(self, taps: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of committed positions, [rows, kv_heads, head_dim] for each layer.

        Args:
            taps: tapped hidden states side by side, [rows, taps x target hidden].
            positions: [rows].
        """
        joined = self.hidden_norm(self.fc(taps))
        rotations = self._rotations(positions, joined.dtype)
        attentions = [cast(Layer, layer).self_attn for layer in self.layers]
        return [attention.keys_values(joined, rotations) for attention in attentions]

    def hidden(self, embeddings: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Final hidden state of the rows of blocks, normed: the input of the head.

        Args:
            embeddings: of anchor and mask tokens, [blocks, rows, hidden].
            positions: [blocks, rows].
            attention: of the blocks' rows over context and block.
        """
        hidden = embeddings
        rotations = self._rotations(positions, hidden.dtype)
        for layer, attend_layer in zip(self.layers, per_layer(attention, len(self.layers)), strict=True):
            hidden = layer(hidden, rotations, attend_layer)
        normed: Tensor = self.norm(hidden)
        return normed

    def draft(self, rows: Tensor, anchors: Tensor, head: Head, pick: Pick) -> Drafted:
        """Choose the tokens of blocks.

        Args:
            rows: final hidden states of the predicting rows, [requests, drafts, hidden].
            anchors: newest token of each request, [requests].
            head: of the logits.
            pick: chooses.
        """
        del anchors  # every token is chosen for itself
        logits, ids = head(rows), self.target_ids(rows.device)
        return Drafted(torch.stack([pick(k, logits[:, k], ids) for k in range(rows.shape[1])], dim=1))

    def branching(self, rows: Tensor, head: Head, count: int) -> Branching:
        """What may follow what in these blocks, for trees.

        Args:
            rows: as of `draft`.
            head: of the logits.
            count: children of a node, at most.
        """
        return Marginals(head(rows), self.target_ids(rows.device), count)

    def _rotations(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return rotation(self.config.rope, self.config.sizes.head_dim, positions, dtype)
