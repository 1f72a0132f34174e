"""What the matrices of a drafter are multiplied with: rounding to four bits asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.dflash2 import DFlash2
from reference_mechanisms.drafters.dspark import DSpark
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.training.batches import Drawn
from reference_mechanisms.drafters.training.forwards import (
    Batch,
    block_rows,
    chain_rows,
    following_tokens,
    trained_on,
)
from reference_mechanisms.targets.training.teaching import AnyTeacher


@torch.no_grad()
def inputs_of(model: DFlash | Eagle3, teacher: AnyTeacher, drawn: Iterable[Drawn]) -> dict[str, Tensor]:
    """Sums of x^T x over the rows x that each matrix meets, float64 [columns, columns] by its name.

    Args:
        model: on the teacher's device, in float32.
        teacher: the target.
        drawn: batches of its texts.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        rows = x.flatten(0, -2).float()
        sums[name] = sums.get(name, 0) + (rows.T @ rows).double()

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _module, given, _out: add(name, given[0])

    hooks = [
        module.register_forward_hook(hook(f"{name}.weight"))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        for one in drawn:
            for sequence in range(len(one.token_ids)):
                _forward(model, teacher, _alone(one, sequence), add)
    finally:
        for handle in hooks:
            handle.remove()
    return sums


def _alone(one: Drawn, sequence: int) -> Drawn:
    """One sequence without the padding behind it and the anchors it has not."""
    part = slice(sequence, sequence + 1)
    has = one.valid[sequence, :, 0]
    text = one.token_ids[part]
    end = int((text[0] != 0).nonzero().max()) + 1
    return Drawn(token_ids=text[:, :end], anchors=one.anchors[part, has], valid=one.valid[part, has])


def _forward(
    model: DFlash | Eagle3, teacher: AnyTeacher, one: Drawn, add: Callable[[str, Tensor], None]
) -> None:
    drafts = one.valid.shape[-1]
    taps = teacher.forward(one.token_ids, trained_on(model)).taps.float()
    batch = Batch(one.token_ids, taps, one.anchors)
    truth = following_tokens(batch, drafts)

    def embed(ids: Tensor) -> Tensor:
        return teacher.embedding[ids].float()

    if isinstance(model, Eagle3):
        chain_rows(model, batch, drafts, embed, lambda step, _rows: truth[..., step])
        return
    rows = block_rows(model, batch, drafts, embed)
    anchors = batch.token_ids.gather(1, batch.anchors)[..., None]
    before = torch.cat((anchors, truth[..., :-1]), dim=-1)
    if isinstance(model, DFlash2):
        add("candidate_selector.successor_codebook", model.candidate_selector.gated(before, rows))
    if isinstance(model, DSpark):
        add("markov_head.markov_w2.weight", model.markov_head.mix_block(before, rows)[0])
