"""Acceptance of a drafter on texts that the target wrote greedily, without decoding them again.

Greedy decoding accepts a draft exactly where it repeats the target's own text, so a text tells every
accepted count: drafts are made from all its positions at once, and a walk visits those that decoding would
have drafted from. The figure that is published is measured by real decoding; this one steers training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.picking import best_of
from reference_mechanisms.drafters.training.corpus import Corpus
from reference_mechanisms.drafters.training.forwards import Batch, block_rows, chain_rows, trained_on
from reference_mechanisms.drafters.training.losses import Ends
from reference_mechanisms.targets.training.teaching import AnyTeacher


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of a number of texts."""

    steps: int  # verify steps
    accepted: int
    survived: tuple[int, ...]  # steps that accepted at least 1, 2, ... drafts

    @property
    def length(self) -> float:
        """Mean acceptance length, the bonus token included."""
        return 1 + self.accepted / self.steps if self.steps else float("nan")

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of steps that accepted at least 1, 2, ... drafts."""
        return tuple(count / self.steps for count in self.survived) if self.steps else ()


class Walked(NamedTuple):
    """One text."""

    source: str
    text: tuple[int, ...]  # what the target wrote
    accepted: tuple[int, ...]  # of each step


@torch.no_grad()
def walk(model: DFlash | Eagle3, teacher: AnyTeacher, corpus: Corpus, drafts: int) -> list[Walked]:
    """Accepted counts of every step of every text.

    Args:
        model: on the teacher's device.
        teacher: the target.
        corpus: prompts and greedy texts.
        drafts: of each step.
    """
    starts = corpus.starts()
    dtype = model.fc.weight.dtype
    embedding = teacher.embedding.to(dtype)
    ends = Ends(lambda ids: embedding[ids], teacher.head.to(dtype))
    found = []
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    for number in range(len(corpus)):
        begin, length = starts[number], int(corpus.lengths[number])
        ids = tuple(int(token) for token in corpus.token_ids[begin : begin + length])
        prompt = int(corpus.prompt_lengths[number])
        accepted: tuple[int, ...] = ()
        if length - prompt > 1:
            with sdpa_kernel(kernels):  # cuDNN's plans an attention anew for every length, for a second each
                drafted = _drafts(model, teacher, ends, ids, prompt, drafts)
            accepted = tuple(_accepted(ids, prompt, drafted.tolist()))
        found.append(Walked(corpus.names[corpus.sources[number]], ids[prompt:], accepted))
    return found


def summed(walked: Iterable[Walked], drafts: int) -> Acceptance:
    """Acceptance over all steps of these texts."""
    counts = [count for one in walked for count in one.accepted]
    survived = tuple(sum(count > place for count in counts) for place in range(drafts))
    return Acceptance(len(counts), sum(counts), survived)


def _accepted(ids: tuple[int, ...], prompt: int, drafted: list[list[int]]) -> list[int]:
    """Walk over the text; `drafted` holds the drafts of each anchor from `prompt` on."""
    counts, anchor = [], prompt
    while anchor < len(ids) - 1:
        truth = ids[anchor + 1 :]
        count = 0
        for draft, token in zip(drafted[anchor - prompt], truth, strict=False):
            if draft != token:
                break
            count += 1
        counts.append(count)
        anchor += count + 1
    return counts


def _drafts(
    model: DFlash | Eagle3, teacher: AnyTeacher, ends: Ends, ids: tuple[int, ...], prompt: int, drafts: int
) -> Tensor:
    """Drafts [anchors, drafts] from every position of the text but the last."""
    token_ids = torch.tensor([ids], device=teacher.device)
    taps = teacher.forward(token_ids, trained_on(model)).taps
    anchors = torch.arange(prompt, len(ids) - 1, device=teacher.device)[None]
    batch = Batch(token_ids, taps.to(model.fc.weight.dtype), anchors)

    def logits(rows: Tensor) -> Tensor:
        return rows @ ends.head.T

    if isinstance(model, Eagle3):
        rows = chain_rows(model, batch, drafts, ends.embed, lambda _step, one: logits(one).argmax(-1))
        return logits(rows)[0].argmax(-1)
    rows = block_rows(model, batch, drafts, ends.embed)[0]
    return model.draft(
        rows, token_ids[0, anchors[0]], logits, lambda _index, *found: best_of(*found)
    ).token_ids
