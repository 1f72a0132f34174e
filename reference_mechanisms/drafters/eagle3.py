"""EAGLE-3: one decoder layer that drafts token by token from fused hidden states of the target.

Source: Li, Wei, Zhang, Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", arXiv 2503.01840. Chains, as engines serve it; for trees see `levels.py`.

A row joins the feature of position i with the token at i + 1 and predicts the token at i + 2. Behind the
committed positions there is no feature of the target, so the layer's own output takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.blocks import (
    Attend,
    Attention,
    DraftVocabulary,
    GatedMLP,
    Layer,
    Reach,
    RMSNorm,
    Sizes,
    per_layer,
)
from reference_mechanisms.drafters.rotation import Rope, rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 head."""

    sizes: Sizes
    layers: int  # the first is the wide one
    rope: Rope
    target_hidden: int
    features: int  # tapped layers
    taps: tuple[int, ...] | None  # None: low, middle and high of the target
    vocab_size: int  # of the target
    draft_vocab_size: int | None = None  # None: the target's, and no map is stored
    drafts: int = 7  # steps; the layout's own number where it names one
    own_embedding: bool = False
    own_head: bool = True
    norm_each_tap: bool = False  # `fc_norm`
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False  # the feature handed on is the normed one
    target_layers: int | None = None  # of the target it was trained for, where the checkpoint tells

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """Every layer is causal."""
        return (Reach(causal=True),) * self.layers


class WideLayer(nn.Module):
    """The first layer: attention reads token embedding and feature side by side."""

    def __init__(self, sizes: Sizes, *, norm_before_residual: bool) -> None:
        """Weights of the layer."""
        super().__init__()
        self._norm_before_residual = norm_before_residual
        self.input_layernorm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.hidden_norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.self_attn = Attention(sizes, 2 * sizes.hidden)
        self.post_attention_layernorm = RMSNorm(sizes.hidden, sizes.norm_eps)
        self.mlp = GatedMLP(sizes)

    def forward(
        self, embeddings: Tensor, features: Tensor, rotations: Tensor, attend_layer: Callable[..., Tensor]
    ) -> Tensor:
        """Residual stream [..., hidden] behind the layer."""
        normed = self.hidden_norm(features)
        wide = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        residual = normed if self._norm_before_residual else features
        hidden = residual + self.self_attn(wide, rotations, attend_layer)
        after: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return after


class Eagle3(nn.Module):
    """The network of EAGLE-3."""

    def __init__(self, config: Eagle3Config) -> None:
        """Weights under their published names."""
        super().__init__()
        self.config = config
        sizes, joined = config.sizes, config.features * config.target_hidden
        self.fc = nn.Linear(joined, sizes.hidden, bias=False)
        self.fc_norm = (
            nn.ModuleList(RMSNorm(config.target_hidden, sizes.norm_eps) for _ in range(config.features))
            if config.norm_each_tap
            else None
        )
        self.input_norm = RMSNorm(joined, sizes.norm_eps) if config.norm_before_fc else None
        first = WideLayer(sizes, norm_before_residual=config.norm_before_residual)
        self.layers = nn.ModuleList([first, *(Layer(sizes) for _ in range(config.layers - 1))])
        self.norm = RMSNorm(sizes.hidden, sizes.norm_eps)
        draft_vocabulary = config.draft_vocab_size or config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, sizes.hidden) if config.own_embedding else None
        self.lm_head = nn.Linear(sizes.hidden, draft_vocabulary, bias=False) if config.own_head else None
        self.vocabulary = DraftVocabulary(draft_vocabulary) if config.draft_vocab_size else None

    def target_ids(self, device: torch.device) -> Tensor:
        """Target id of each column of the logits."""
        if self.vocabulary is None:
            return torch.arange(self.config.vocab_size, device=device)
        return self.vocabulary.target_ids()

    def fuse(self, taps: Tensor) -> Tensor:
        """Features [rows, hidden] of tapped hidden states [rows, taps x target hidden]."""
        if self.fc_norm is not None:
            parts = taps.chunk(self.config.features, dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        fused: Tensor = self.fc(taps)
        return fused

    def forward(self, features: Tensor, embeddings: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Output rows [..., hidden], before the final norm.

        Args:
            features: of positions i, [..., hidden].
            embeddings: of the tokens at i + 1, [..., hidden].
            positions: i, [...].
            attention: of the rows over what is in front of them and themselves.
        """
        rotations = rotation(self.config.rope, self.config.sizes.head_dim, positions, features.dtype)
        first, *others = per_layer(attention, len(self.layers))
        hidden: Tensor = self.layers[0](embeddings, features, rotations, first)
        for layer, attend_layer in zip(list(self.layers)[1:], others, strict=True):
            hidden = layer(hidden, rotations, attend_layer)
        return hidden

    def normed(self, outputs: Tensor) -> Tensor:
        """Input of the head."""
        normed: Tensor = self.norm(outputs)
        return normed

    def handed_on(self, outputs: Tensor) -> Tensor:
        """What takes the place of the feature at the next step."""
        return self.normed(outputs) if self.config.norm_output else outputs
