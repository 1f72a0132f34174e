"""Runs every detector on a drafter and its target, over the target's own greedy answers to some prompts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters import detectors
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.detectors import Finding
from reference_mechanisms.drafters.dflash import Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.picking import best_of
from reference_mechanisms.drafters.training.forwards import Batch, block_rows, chain_rows
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.request import Request, Sampling

OFFSETS = (-1, 0, 1)
CONTEXTS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
ENOUGH = 50  # blocks that a range of contexts rests on


class Text(NamedTuple):
    """A prompt and what the target says to it."""

    token_ids: tuple[int, ...]
    prompt: int  # tokens


class Forced(NamedTuple):
    """What a drafter finds best behind true tokens, at every anchor of the answer of a text."""

    best: Tensor  # ids [anchors, drafts]
    predicts: Tensor  # position of each, [anchors, drafts]
    anchors: Tensor  # [anchors]


def answered(
    target: Target, prompts: Sequence[Sequence[int]], eos_ids: Sequence[int], tokens: int
) -> list[Text]:
    """The target's greedy answers, up to `tokens` tokens or the end that the target gives them."""
    longest = max(len(prompt) for prompt in prompts)
    decoder = Decoder(target, eos_ids, lambda _ids: "", longest + tokens)
    found = []
    for number, prompt in enumerate(prompts):
        request = Request(name=f"prompt {number}", prompt=tuple(prompt), sampling=Sampling(max_tokens=tokens))
        (answer,) = decoder.continuation([request])
        end = next((place for place, token in enumerate(answer) if token in eos_ids), len(answer)) + 1
        found.append(Text((*prompt, *answer[:end]), len(prompt)))
    return found


def examine(bound: Bound, target: Target, texts: Sequence[Text]) -> tuple[Finding, ...]:
    """What every detector says.

    Args:
        bound: the drafter, on the target's device in its type.
        target: the target.
        texts: answers of the target; those no longer than a draft tell nothing.

    Raises:
        DrafterError: no answer is longer than a draft.
    """
    layers, least = target.config.layers, bound.network.config.drafts + 2
    texts = [text for text in texts if len(text.token_ids) - text.prompt >= least]
    if not texts:
        raise DrafterError(f"no answer has {least} tokens or more; give other prompts")
    by_offset: dict[int, detectors.Rows] = {}
    plain: list[tuple[Text, Forced]] = []
    for offset in OFFSETS:
        taps = tuple(tap + offset for tap in bound.taps)
        if not all(-1 <= tap < layers for tap in taps):
            continue
        forced = [(text, force(bound, tapped(target, text, taps), text)) for text in texts]
        by_offset[offset] = _accuracies(forced, 0)
        if offset == 0:
            plain = forced
    by_shift = {shift: _accuracies(plain, shift) for shift in OFFSETS}
    return (
        detectors.last_layer_tap(bound.taps, layers),
        detectors.untrained_norms(bound.network),
        detectors.head_not_shared(by_shift[0]),
        detectors.rows_behind_first(by_shift[0]),
        detectors.row_convention(by_shift),
        detectors.tap_offset(by_offset),
        detectors.falls_with_context(_by_context(plain)),
    )


@torch.inference_mode()
def force(bound: Bound, taps: Tensor, text: Text) -> Forced:
    """Draft at every place of an answer, with the true tokens in front of each draft.

    Args:
        bound: the drafter.
        taps: of the whole text, [positions, taps x hidden].
        text: the text.
    """
    network, device = bound.network, taps.device
    ids = torch.tensor(text.token_ids, device=device)
    drafts = network.config.drafts
    # A place beside the last predicted one is needed on both sides, for labels that are shifted.
    anchors = torch.arange(text.prompt, len(ids) - drafts - 1, device=device)
    predicts = anchors[:, None] + 1 + torch.arange(drafts, device=device)
    embed: Head = bound.ends.embed if network.embed_tokens is None else network.embed_tokens
    head: Head = bound.ends.head if network.lm_head is None else network.lm_head
    batch = Batch(ids[None], taps[None], anchors[None])
    if isinstance(network, Eagle3):
        rows = chain_rows(network, batch, drafts, embed, lambda step, _rows: ids[predicts[None, :, step]])
        return Forced(network.target_ids(device)[head(rows[0]).argmax(-1)], predicts, anchors)
    best: list[Tensor] = []

    def pick(index: int, scores: Tensor, candidates: Tensor) -> Tensor:
        best.append(best_of(scores, candidates))
        return ids[predicts[:, index]]

    network.draft(block_rows(network, batch, drafts, embed)[0], ids[anchors], head, pick)
    return Forced(torch.stack(best, dim=1), predicts, anchors)


def tapped(target: Target, text: Text, taps: tuple[int, ...]) -> Tensor:
    """Hidden states of a text, [positions, taps x hidden]."""
    count = len(text.token_ids)
    rows = Rows(text.token_ids, range(count), [Segment(0, 0, count)])
    return torch.cat(target.forward(rows, target.new_cache(1, count), taps).taps, dim=-1)


def _right(forced: Sequence[tuple[Text, Forced]], shift: int) -> Iterator[Tensor]:
    """Which drafts are the token `shift` places behind the one they are for, [anchors, drafts]."""
    for text, found in forced:
        ids = torch.tensor(text.token_ids, device=found.best.device)
        yield found.best == ids[found.predicts + shift]


def _accuracies(forced: Sequence[tuple[Text, Forced]], shift: int) -> detectors.Rows:
    return torch.cat(list(_right(forced, shift))).double().mean(0).tolist()


def _by_context(forced: Sequence[tuple[Text, Forced]]) -> Mapping[int, float]:
    right = torch.cat(list(_right(forced, 0))).double().mean(1)
    lengths = torch.cat([found.anchors for _, found in forced])
    edges = (*CONTEXTS, int(lengths.max()) + CONTEXTS[-1])
    found = {}
    for low, high in itertools.pairwise(edges):
        mine = right[(lengths >= low) & (lengths < high)]
        if len(mine) >= ENOUGH:
            found[low] = float(mine.mean())
    return found
