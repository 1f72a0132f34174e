"""Cross entropy through a large frozen head, without ever holding the logits of all rows.

Rows go through the head in chunks; each chunk's logits become their own gradient in place, so forward and
backward together cost two products and one buffer. Behind the frozen columns of the weight may stand a few
trained ones (a low-rank bias on the logits); only these get a gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

CHUNK = 8192  # rows


class HeadLoss(NamedTuple):
    """Of a set of rows."""

    loss: Tensor  # sum of weight x cross entropy, float32
    hits: Tensor  # bool [rows]: the label has the largest logit


class Taught(NamedTuple):
    """What the target itself says of the rows that are learnt."""

    logits: Tensor  # [rows, vocabulary]
    normals: Tensor  # float32 [rows]: logarithm of the sum of their exponentials
    share: float  # of the target's distribution in what is aimed at; the label has the rest


def taught_by(logits: Tensor, share: float) -> Taught:
    """The target's logits [rows, vocabulary], ready to be learnt from."""
    if logits.is_cuda:
        from reference_mechanisms.kernels.training.softmax_gradient import row_normals  # noqa: PLC0415

        return Taught(logits, row_normals(logits), share)
    return Taught(logits, _wide(logits).logsumexp(-1), share)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        frozen: Tensor,
        trained: Tensor | None,
        labels: Tensor,
        weights: Tensor,
        taught: Taught | None,
    ) -> tuple[Tensor, Tensor]:
        matrix = frozen if trained is None else torch.cat((frozen, trained.to(frozen.dtype)), dim=1)
        wide = rows.to(frozen.dtype)
        row_gradient = torch.empty_like(wide)
        trained_gradient = None if trained is None else torch.zeros_like(trained, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        hits = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
        width = frozen.shape[1]
        for begin in range(0, len(rows), CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = wide[part] @ matrix.T
            losses, hits[part] = _to_gradient(logits, labels[part], weights[part], _part(taught, part))
            total += losses.sum()
            torch.mm(logits, matrix, out=row_gradient[part])
            if trained_gradient is not None:
                trained_gradient += logits.T @ wide[part][:, width:]
        ctx.save_for_backward(row_gradient, trained_gradient)
        ctx.dtypes = rows.dtype, None if trained is None else trained.dtype
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        scale = gradients[0]
        row_gradient, trained_gradient = ctx.saved_tensors
        row_dtype, trained_dtype = ctx.dtypes
        trained = None if trained_gradient is None else (trained_gradient * scale).to(trained_dtype)
        return (row_gradient * scale).to(row_dtype), None, trained, None, None, None


def head_loss(
    rows: Tensor,
    frozen: Tensor,
    labels: Tensor,
    weights: Tensor,
    trained: Tensor | None = None,
    taught: Taught | None = None,
) -> HeadLoss:
    """Weighted cross entropy of rows.

    Args:
        rows: inputs of the head, [rows, hidden (+ rank)].
        frozen: the target's head, [vocabulary, hidden].
        labels: token ids [rows].
        weights: float32 [rows]; 0 leaves a row out.
        trained: further columns of the head, [vocabulary, rank].
        taught: what the target says of the rows; None: the labels alone are aimed at.
    """
    loss, hits = cast(
        tuple[Tensor, Tensor],
        _Fused.apply(rows, frozen, trained, labels, weights, taught),  # type: ignore[no-untyped-call]
    )
    return HeadLoss(loss, hits)


def _part(taught: Taught | None, part: slice) -> Taught | None:
    return None if taught is None else Taught(taught.logits[part], taught.normals[part], taught.share)


def _wide(logits: Tensor) -> Tensor:
    return logits.double() if logits.dtype == torch.float64 else logits.float()


def _to_gradient(
    logits: Tensor, labels: Tensor, weights: Tensor, taught: Taught | None
) -> tuple[Tensor, Tensor]:
    """Overwrite logits by weight x (softmax - aim); the weighted losses and which labels are on top."""
    if logits.is_cuda:
        from reference_mechanisms.kernels.training.softmax_gradient import softmax_gradient_  # noqa: PLC0415

        return softmax_gradient_(logits, labels, weights, taught)
    wide = _wide(logits)
    aim = torch.zeros_like(wide)
    if taught is not None:
        aim = taught.share * (_wide(taught.logits) - taught.normals[:, None]).exp()
    chosen = labels[:, None]
    aim.scatter_add_(1, chosen, aim.new_full(chosen.shape, 1.0 if taught is None else 1.0 - taught.share))
    losses = (wide.logsumexp(-1) - (aim * wide).sum(-1)) * weights
    hits = wide.argmax(-1) == labels
    logits.copy_((wide.softmax(-1) - aim) * weights[:, None])
    return losses, hits
