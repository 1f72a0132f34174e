"""DFlash 2: DFlash with a short convolution around each sublayer and a selector of the path of tokens.

Source: the model code and weights published as `DFlash2DraftModel` (incoai and z-lab, 2026).

The convolution mixes each row with the row in front of it inside the block, with kernels that depend on
the row. The selector takes the best candidates of each row and walks from the anchor from token to token,
adding to the head's logit a score of the pair (previous token, candidate) under the row's hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_mechanisms.drafters.blocks import Layer, Sizes
from reference_mechanisms.drafters.dflash import BlockConfig, DFlash, Drafted, Head, Pick
from reference_mechanisms.verification.growing import Branching, Children, best_children


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash2Config(BlockConfig):
    """DFlash 2."""

    kernel: int  # taps of the convolution
    group: int  # channels that share a kernel correction
    selector_rank: int
    candidates: int  # of each row


class BlockConvolution(nn.Module):
    """Dynamic convolution over the rows of a block, at the entry and at the exit of a sublayer."""

    def __init__(self, hidden: int, kernel: int, group: int) -> None:
        """Identity: the newest tap is 1, and no correction."""
        super().__init__()
        self._kernel, self._group = kernel, group
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * kernel * (hidden // group), bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """exit(sublayer(entry(x))) for normed rows x [blocks, rows, hidden]; both kernels come from x."""
        corrections = self.kernel_projection(x).unflatten(-1, (2, self._kernel, -1))
        kernels = self.base_kernel + corrections.repeat_interleave(self._group, dim=-1)
        entry, leave = kernels.unbind(-3)
        return _convolve(sublayer(_convolve(x, entry)), leave)


def _convolve(x: Tensor, kernels: Tensor) -> Tensor:
    """Sum over o of kernels [..., rows, kernel, hidden] at o times the row o before; 0 before the block."""
    rows = x.shape[-2]
    shifted = [F.pad(x, (0, 0, back, 0))[..., :rows, :] for back in range(kernels.shape[-2])]
    return (kernels * torch.stack(shifted, dim=-2)).sum(-2)


class ConvolvedLayer(Layer):
    """Decoder layer with a convolution around attention and around the MLP."""

    def __init__(self, sizes: Sizes, kernel: int, group: int) -> None:
        """Weights of one layer."""
        super().__init__(sizes)
        self.attention_conv = BlockConvolution(sizes.hidden, kernel, group)
        self.mlp_conv = BlockConvolution(sizes.hidden, kernel, group)

    def forward(self, hidden: Tensor, rotations: Tensor, attend_layer: Callable[..., Tensor]) -> Tensor:
        """Residual stream [blocks, rows, hidden] behind the layer."""

        def attention(x: Tensor) -> Tensor:
            attended: Tensor = self.self_attn(x, rotations, attend_layer)
            return attended

        hidden = hidden + self.attention_conv(self.input_layernorm(hidden), attention)
        after: Tensor = hidden + self.mlp_conv(self.post_attention_layernorm(hidden), self.mlp)
        return after


class CandidateSelector(nn.Module):
    """Scores pairs of a token and its successor."""

    def __init__(self, vocab_size: int, rank: int, hidden: int) -> None:
        """The successor codebook is zero, so the selector begins as plain DFlash."""
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab_size, rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(self, previous: Tensor, row: Tensor, candidates: Tensor) -> Tensor:
        """Bonus [requests, candidates] behind tokens `previous` [requests] at row [requests, hidden]."""
        gated = self.gated(previous, row)
        bonus: Tensor = (self.successor_codebook[candidates] @ gated[..., None]).squeeze(-1)
        return bonus

    def gated(self, previous: Tensor, row: Tensor) -> Tensor:
        """What the bonus is linear in, [..., rank], behind tokens [...] at rows [..., hidden]."""
        gated: Tensor = self.predecessor_codebook[previous] * self.hidden_projection(row)
        return gated


class DFlash2(DFlash):
    """The network of DFlash 2."""

    config: DFlash2Config

    def __init__(self, config: DFlash2Config) -> None:
        """Weights under their published names."""
        super().__init__(config)
        self.candidate_selector = CandidateSelector(
            config.vocab_size, config.selector_rank, config.sizes.hidden
        )

    def new_layer(self) -> nn.Module:
        """One decoder layer."""
        return ConvolvedLayer(self.config.sizes, self.config.kernel, self.config.group)

    def draft(self, rows: Tensor, anchors: Tensor, head: Head, pick: Pick) -> Drafted:
        """Walk from the anchor over the best candidates of each row."""
        values, candidates = self.candidates(rows, head)
        previous, chosen = anchors, []
        for k in range(rows.shape[1]):
            bonus = self.candidate_selector(previous, rows[:, k], candidates[:, k])
            previous = pick(k, values[:, k] + bonus, candidates[:, k])
            chosen.append(previous)
        return Drafted(torch.stack(chosen, dim=1))

    def candidates(self, rows: Tensor, head: Head) -> tuple[Tensor, Tensor]:
        """Logits and ids of the best tokens of each row, both [requests, drafts, candidates]."""
        values, ids = head(rows).topk(min(self.config.candidates, self.config.vocab_size), dim=-1)
        return values, ids

    def branching(self, rows: Tensor, head: Head, count: int) -> Branching:
        """As in `DFlash`: the candidates of a row, under the selector's scores behind each parent."""
        return PairScores(self, rows, head, count)


class PairScores:
    """Children of a node from the pairs (its token, candidate)."""

    def __init__(self, model: DFlash2, rows: Tensor, head: Head, count: int) -> None:
        """Arguments as of `DFlash2.branching`."""
        self._selector, self._rows, self._count = model.candidate_selector, rows, count
        self._values, self._candidates = model.candidates(rows, head)

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`; probabilities are over the candidates alone."""
        del parents
        ids = self._candidates[:, depth]
        gated = self._selector.gated(token_ids, self._rows[:, depth, None])
        bonus = gated @ self._selector.successor_codebook[ids].transpose(1, 2)
        scores = (self._values[:, depth, None] + bonus).float().log_softmax(-1)
        return best_children(scores, ids[:, None], self._count)
