"""DSpark: a DFlash backbone, a bigram correction from token to token, and a confidence of each draft.

Source: "DSpark", DeepSeek 2026, and the published DeepSpec training code's description of its heads.

The Markov head adds to a row's logits a low-rank bias that depends on the token before; drafts are chosen
left to right. The confidence head tells the probability that a draft is accepted once all before it are;
it sees the token before the draft and never the draft itself, which `scheduling.py` relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.dflash import BlockConfig, DFlash, Drafted, Head, Pick
from reference_mechanisms.verification.growing import Branching, Children, best_children

MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig(BlockConfig):
    """DSpark."""

    markov_rank: int
    markov_kind: MarkovKind = "vanilla"
    confidence: bool = True  # has a confidence head
    confidence_with_markov: bool = True  # which sees the token before


class MarkovHead(nn.Module):
    """Bias on the logits from the token before the predicted one."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, hidden: int, config: DSparkConfig) -> None:
        """The bias is zero at first."""
        super().__init__()
        rank = config.markov_rank
        self._rank = rank
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        nn.init.zeros_(self.markov_w2.weight)
        self.gate_proj = nn.Linear(hidden + rank, rank) if config.markov_kind == "gated" else None
        self.joint_proj = nn.Linear(hidden + 2 * rank, 3 * rank) if config.markov_kind == "rnn" else None

    def begin(self, requests: int, like: Tensor) -> Tensor:
        """State in front of a block, [requests, rank]; only the rnn kind changes it."""
        return like.new_zeros(requests, self._rank)

    def mix(self, previous: Tensor, row: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the bias is linear in, [..., rank], and the next state.

        Args:
            previous: embeddings of the tokens before, [..., rank].
            row: final hidden states, [..., hidden].
            state: [..., rank].
        """
        mixed = previous
        if self.gate_proj is not None:
            mixed = torch.sigmoid(self.gate_proj(torch.cat((row, previous), dim=-1))) * previous
        if self.joint_proj is not None:
            joint = self.joint_proj(torch.cat((state, previous, row), dim=-1))
            gate, candidate, output = joint.chunk(3, dim=-1)
            keep = torch.sigmoid(gate)
            state, mixed = keep * state + (1 - keep) * torch.tanh(candidate), torch.tanh(output)
        return mixed, state

    def mix_block(self, before: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the biases of a block are linear in, and the embeddings they come from.

        Args:
            before: token in front of each draft, [..., drafts].
            rows: final hidden states, [..., drafts, hidden].

        Returns:
            Both [..., drafts, rank].
        """
        previous = self.markov_w1(before)
        state = torch.zeros_like(previous[..., 0, :])
        mixed = []
        for draft in range(before.shape[-1]):
            one, state = self.mix(previous[..., draft, :], rows[..., draft, :], state)
            mixed.append(one)
        return torch.stack(mixed, dim=-2), previous

    def forward(self, previous: Tensor, row: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Bias [requests, draft vocabulary] and the next state; arguments as of `mix`."""
        mixed, state = self.mix(previous, row, state)
        return self.markov_w2(mixed), state


class ConfidenceHead(nn.Module):
    """Logit of a draft being accepted."""

    def __init__(self, inputs: int) -> None:
        """One linear layer with a bias."""
        super().__init__()
        self.proj = nn.Linear(inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[...], in float32 at least."""
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        weight, bias = self.proj.weight.to(wide), self.proj.bias.to(wide)
        return nn.functional.linear(x.to(wide), weight, bias).squeeze(-1)


class DSpark(DFlash):
    """The network of DSpark."""

    config: DSparkConfig

    def __init__(self, config: DSparkConfig) -> None:
        """Weights under their published names."""
        super().__init__(config)
        hidden = config.sizes.hidden
        self.markov_head = MarkovHead(
            config.vocab_size, config.draft_vocab_size or config.vocab_size, hidden, config
        )
        inputs = hidden + config.markov_rank if config.confidence_with_markov else hidden
        self.confidence_head = ConfidenceHead(inputs) if config.confidence else None

    def draft(self, rows: Tensor, anchors: Tensor, head: Head, pick: Pick) -> Drafted:
        """Choose left to right, each token under the bias of the one before."""
        logits, ids = head(rows), self.target_ids(rows.device)
        state = self.markov_head.begin(len(rows), rows)
        token, chosen, confidences = anchors, [], []
        for k in range(rows.shape[1]):
            previous = self.markov_head.markov_w1(token)
            if self.confidence_head is not None:
                confidences.append(self.confidence_head(self.confidence_input(rows[:, k], previous)))
            bias, state = self.markov_head(previous, rows[:, k], state)
            token = pick(k, logits[:, k] + bias, ids)
            chosen.append(token)
        return Drafted(torch.stack(chosen, 1), torch.stack(confidences, 1) if confidences else None)

    def branching(self, rows: Tensor, head: Head, count: int) -> Branching:
        """As in `DFlash`: a row's logits under the bias of each parent."""
        return MarkovScores(self, rows, head, count)

    def confidence_input(self, row: Tensor, previous: Tensor) -> Tensor:
        """What the confidence head reads of a row [..., hidden] behind a token embedded as [..., rank]."""
        return torch.cat((row, previous), dim=-1) if self.config.confidence_with_markov else row


class MarkovScores:
    """Children of a node from a row's logits and the bias that its token puts on them."""

    def __init__(self, model: DSpark, rows: Tensor, head: Head, count: int) -> None:
        """Arguments as of `DSpark.branching`."""
        self._head, self._rows, self._count = model.markov_head, rows, count
        self._logits, self._ids = head(rows), model.target_ids(rows.device)
        self._states = self._head.begin(len(rows), rows)[:, None]  # [requests, parents, rank]

    def children(self, depth: int, token_ids: Tensor, parents: Tensor) -> Children:
        """As in `growing.Branching`."""
        rank = self._states.shape[-1]
        states = self._states.gather(1, parents[..., None].expand(-1, -1, rank))
        rows = self._rows[:, depth, None].expand(-1, token_ids.shape[1], -1)
        bias, self._states = self._head(self._head.markov_w1(token_ids), rows, states)
        scores = (self._logits[:, depth, None] + bias).float().log_softmax(-1)
        return best_children(scores, self._ids, self._count)
