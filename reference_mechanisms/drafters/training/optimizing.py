"""Optimizers of training: AdamW, and Muon for the matrices inside of layers.

Muon (Jordan et al., 2024) moves a matrix along its momentum with all singular values brought to about one.
Every quantity that changes from step to step is a tensor on the device, so that a whole step can be
recorded and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Quintic iteration of the published method, and how often.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_ADAM_EPS = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizing:
    """How weights are moved."""

    learning_rate: float = 1e-3  # of AdamW, at its highest
    muon_rate: float | None = None  # of Muon, at its highest; None: AdamW moves the matrices too
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.95
    clip: float = 1.0  # norm of the whole gradient


def share_of(step: int, steps: int, warmup: float) -> float:
    """Share of the highest rates at a step: a linear warm-up, then a cosine to zero.

    Args:
        step: from 0.
        steps: of the training.
        warmup: share of the steps.
    """
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    return (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


class Mover:
    """Moves the weights of one model; `share` of the highest rates is told before each step."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], optimizing: Optimizing) -> None:
        """Take weights by name; matrices of layers and joins are Muon's, where it is used at all."""
        self._optimizing = optimizing
        every = dict(named)
        self._muon = [
            weight
            for name, weight in every.items()
            if optimizing.muon_rate is not None and weight.ndim == 2 and _is_inner(name)
        ]
        taken = {id(weight) for weight in self._muon}
        self._adam = [weight for weight in every.values() if id(weight) not in taken]
        device = next(iter(every.values())).device
        self.share = torch.zeros((), device=device)
        self.steps = torch.zeros((), device=device)
        self.state: Mapping[str, list[Tensor]] = {
            "first": [torch.zeros_like(weight) for weight in self._adam],
            "second": [torch.zeros_like(weight) for weight in self._adam],
            "momentum": [torch.zeros_like(weight) for weight in self._muon],
        }

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight by its gradient, which is clipped first."""
        options = self._optimizing
        gradients = [_gradient(weight) for weight in (*self._adam, *self._muon)]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (options.clip / norm.clamp_min(options.clip)))
        self.steps += 1
        self._step_adam(gradients[: len(self._adam)])
        if self._muon:
            self._step_muon(gradients[len(self._adam) :])

    def _step_adam(self, gradients: Sequence[Tensor]) -> None:
        first, second = self.state["first"], self.state["second"]
        low, high = self._optimizing.betas
        torch._foreach_lerp_(first, list(gradients), 1 - low)
        torch._foreach_mul_(second, high)
        torch._foreach_addcmul_(second, list(gradients), list(gradients), 1 - high)
        wide = torch._foreach_sqrt(second)
        torch._foreach_mul_(wide, (1 - high**self.steps).rsqrt())
        torch._foreach_add_(wide, _ADAM_EPS)
        moves = torch._foreach_div(first, wide)
        torch._foreach_mul_(moves, -self._optimizing.learning_rate * self.share / (1 - low**self.steps))
        for weight, move in zip(self._adam, moves, strict=True):
            weight.add_(move)

    def _step_muon(self, gradients: Sequence[Tensor]) -> None:
        rate, momentum = self._optimizing.muon_rate or 0.0, self._optimizing.momentum
        kept = self.state["momentum"]
        torch._foreach_lerp_(kept, list(gradients), 1 - momentum)
        for weight, gradient, average in zip(self._muon, gradients, kept, strict=True):
            move = _orthogonal(torch.lerp(gradient, average, momentum))
            scale = 0.2 * max(weight.shape) ** 0.5  # as large as AdamW's moves are
            weight.add_(move.to(weight.dtype) * (-rate * scale * self.share))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs."""
        found = {"share": self.share, "steps": self.steps}
        for name, tensors in self.state.items():
            found |= {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}
        return found


def _is_inner(name: str) -> bool:
    return name.startswith(("layers.", "fc."))


def _gradient(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        raise ValueError("a weight got no gradient; every part of a drafter must take part in its loss")
    return weight.grad


def _orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with the same singular vectors and singular values of about one."""
    a, b, c = _COEFFICIENTS
    x = matrix.to(torch.bfloat16 if matrix.is_cuda else matrix.dtype)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    turned: Tensor = x.T if tall else x
    return turned
