"""What the engine asks of a target and of its cache.

A step is three calls: `Target.forward` runs rows behind what is committed and changes nothing that is;
`Cache.commit` makes the accepted ones part of the sequence; `Cache.clear` begins another. Rejected rows
are never undone, only not committed. So a cache may hold more than keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows


class Forward(NamedTuple):
    """What one forward leaves besides the cache."""

    hidden: Tensor  # [rows, hidden], after the final norm: the input of `logits`
    taps: tuple[Tensor, ...]  # residual stream after each tapped layer, [rows, hidden]


class TargetConfig(Protocol):
    """Sizes that drafters and requests are held against."""

    @property
    def vocab_size(self) -> int:
        """Tokens."""
        ...

    @property
    def hidden_size(self) -> int:
        """Of the residual stream."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers of any kind."""
        ...


class Cache(Protocol):
    """Sequences of some requests; see `cache.KVCache`."""

    slots: int

    def length(self, slot: int) -> int:
        """Committed positions of a slot."""
        ...

    def clear(self, slot: int) -> None:
        """Begin a new sequence."""
        ...

    def commit(self, slot: int, kept: int) -> None:
        """Keep the first `kept` rows of the slot's last forward."""
        ...

    def commit_path(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of rows of the slot's last forward, which ran a tree."""
        ...


class RewindableCache(Cache, Protocol):
    """A cache that can take back what was committed; see `cache.KVCache`, `hybrid_cache.HybridCache`."""

    def mark(self, slot: int) -> None:
        """What is committed from here on may be taken back."""
        ...

    def rewind(self, slot: int, kept: int) -> None:
        """Take back all but the first `kept` rows that were committed since `mark`; the mark is gone."""
        ...


class Target(Protocol):
    """A model on one device; sequences live in its caches."""

    dtype: torch.dtype
    device: torch.device

    @property
    def config(self) -> TargetConfig:
        """Its sizes."""
        ...

    @property
    def linear_kernel(self) -> str:
        """How linear layers are computed, for the report."""
        ...

    def new_cache(self, slots: int, capacity: int) -> Any:
        """A cache of the target's own kind, which `forward` takes."""
        ...

    def forward(self, rows: Rows, cache: Any, taps: Sequence[int] = ()) -> Forward:
        """Run packed rows behind what the cache holds; nothing is committed."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., hidden] of ids [...]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] from rows of `Forward.hidden`."""
        ...
