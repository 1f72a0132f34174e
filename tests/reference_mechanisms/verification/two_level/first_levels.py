"""First levels that lie: at random, always, or never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows
from reference_mechanisms.engine.target import Forward, Target, TargetConfig


class LyingLevel:
    """A target that says random tokens, with this probability a row."""

    def __init__(self, target: Target, lies: float, seed: int = 0) -> None:
        self.target, self.lies = target, lies
        self.dtype, self.device = target.dtype, target.device
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[int] = []  # of each forward

    @property
    def config(self) -> TargetConfig:
        return self.target.config

    @property
    def linear_kernel(self) -> str:
        return self.target.linear_kernel

    def new_cache(self, slots: int, capacity: int) -> Any:
        return self.target.new_cache(slots, capacity)

    def forward(self, rows: Rows, cache: Any, taps: Sequence[int] = ()) -> Forward:
        self.rows.append(len(rows.token_ids))
        return self.target.forward(rows, cache, taps)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.target.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        found = self.target.logits(hidden).clone()
        lies = torch.rand(len(found), generator=self.generator) < self.lies
        found[lies] = 9 * torch.randn(found[lies].shape, generator=self.generator).to(found.dtype)
        return found
