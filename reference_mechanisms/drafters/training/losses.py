"""What each drafter is trained to do: give the target's own next tokens the largest scores.

The texts are the target's, mostly greedy, so their tokens are its choices: cross entropy with them is what
greedy verification rewards, and cross entropy with the distribution they were chosen from says the same with
less noise. Two departures from the published recipes: DSpark's confidence is trained on whether the draft
was right, which at temperature 0 is whether it is accepted; DFlash 2's selector is trained over the whole
vocabulary as the low-rank bias that it is, instead of over 16 candidates that change as training goes on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.dflash2 import DFlash2
from reference_mechanisms.drafters.dspark import DSpark
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.training.forwards import (
    Batch,
    Embed,
    block_rows,
    chain_rows,
    following_tokens,
)
from reference_mechanisms.drafters.training.head_loss import Taught, head_loss

CONFIDENCE_WEIGHT = 0.1
BASE_WEIGHT = 0.5  # of DFlash 2's scores without the selector, whose best 16 it chooses from


class Ends(NamedTuple):
    """What the drafter shares with the target."""

    embed: Embed
    head: Tensor  # [vocabulary, hidden]


class Loss(NamedTuple):
    """Of one batch."""

    value: Tensor  # to be minimised
    cross_entropy: Tensor  # of the scores that drafts are chosen by, weighted mean
    hits: Tensor  # bool [sequences, anchors, drafts]: the true token has the largest score


def loss_of(
    model: DFlash | Eagle3, batch: Batch, weights: Tensor, ends: Ends, taught: Taught | None = None
) -> Loss:
    """The loss of a drafter on a batch.

    Args:
        model: any drafter.
        batch: sequences and anchors.
        weights: float32 [sequences, anchors, drafts]; 0 where no token stands.
        ends: of the target.
        taught: what the target says of every draft, rows in the order of `weights`.
    """
    drafts = weights.shape[-1]
    truth = following_tokens(batch, drafts)
    labels, flat = truth.flatten(), weights.flatten()
    total = flat.sum().clamp_min(1e-6)
    if isinstance(model, Eagle3):
        rows = chain_rows(model, batch, drafts, ends.embed, lambda step, _rows: truth[..., step])
        found = head_loss(rows.flatten(0, 2), ends.head, labels, flat, None, taught)
        return Loss(found.loss / total, found.loss.detach() / total, found.hits.view(truth.shape))
    rows = block_rows(model, batch, drafts, ends.embed)
    anchors = batch.token_ids.gather(1, batch.anchors)[..., None]
    before = torch.cat((anchors, truth[..., :-1]), dim=-1)  # the token in front of each draft
    if isinstance(model, DSpark):
        return _dspark(model, rows, before, labels, weights, ends, taught)
    if isinstance(model, DFlash2):
        selector = model.candidate_selector
        wide = torch.cat((rows, selector.gated(before, rows)), dim=-1)
        chosen = head_loss(wide.flatten(0, 2), ends.head, labels, flat, selector.successor_codebook, taught)
        base = head_loss(rows.flatten(0, 2), ends.head, labels, flat, None, taught)
        value = (chosen.loss + BASE_WEIGHT * base.loss) / total
        return Loss(value, chosen.loss.detach() / total, chosen.hits.view(truth.shape))
    found = head_loss(rows.flatten(0, 2), ends.head, labels, flat, None, taught)
    return Loss(found.loss / total, found.loss.detach() / total, found.hits.view(truth.shape))


def _dspark(
    model: DSpark,
    rows: Tensor,
    before: Tensor,
    labels: Tensor,
    weights: Tensor,
    ends: Ends,
    taught: Taught | None,
) -> Loss:
    markov = model.markov_head
    mixed, previous = markov.mix_block(before, rows)
    wide = torch.cat((rows, mixed), dim=-1)
    flat = weights.flatten()
    total = flat.sum().clamp_min(1e-6)
    found = head_loss(wide.flatten(0, 2), ends.head, labels, flat, markov.markov_w2.weight, taught)
    hits = found.hits.view(weights.shape)
    value = found.loss / total
    if model.confidence_head is not None:
        told = model.confidence_head(model.confidence_input(rows, previous).detach())
        errors = F.binary_cross_entropy_with_logits(told, hits.to(told.dtype), reduction="none")
        value = value + CONFIDENCE_WEIGHT * (errors * weights).sum() / total
    return Loss(value, found.loss.detach() / total, hits)


def position_weights(valid: Tensor, gamma: float) -> Tensor:
    """Weights of drafts, exp(-k / gamma) for draft k counted from 0, and 0 where nothing is valid.

    Args:
        valid: bool [sequences, anchors, drafts].
        gamma: how fast later drafts lose weight.
    """
    places = torch.arange(valid.shape[-1], device=valid.device, dtype=torch.float32)
    return torch.exp(-places / gamma) * valid
