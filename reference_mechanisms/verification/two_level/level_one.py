"""First-level verifiers: targets that are cheaper than the target, and may be wrong.

Each is a `Target` of its own with caches of its own, so whatever runs on a target runs on it: chains, trees,
sampling. Nothing that it says is emitted unless level two says it too.

Sources: 4-bit weights as their own draft, QuantSpec (arXiv 2502.10424); early exit as the first of two
verifiers, HiSpec (arXiv 2510.01336); a sparse cache as the first of two, TriForce (arXiv 2404.11912).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch

from reference_mechanisms.engine.cache import Window
from reference_mechanisms.engine.target import RewindableCache, Target
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.verification.two_level.four_bit import load_four_bit

LevelName = Literal["four-bit", "early-exit", "window", "bf16", "wy"]


class LevelOne(NamedTuple):
    """What a first-level verifier is; the fields that its name does not use are None."""

    name: LevelName
    layers: int | None = None  # of an early exit
    window: Window | None = None

    @property
    def about(self) -> str:
        """One phrase for the report."""
        if self.layers is not None:
            return f"early exit behind {self.layers} layers"
        if self.window is not None:
            return f"the first {self.window.sinks} and last {self.window.recent} positions"
        names = {
            "four-bit": "4-bit weights",
            "bf16": "arithmetic in bfloat16",
            "wy": "recurrent layers in the WY form",
        }
        return names.get(self.name, self.name)


@runtime_checkable
class Reducible(Target, Protocol):
    """A target that cheaper ones can be made of without a copy of the weights."""

    def shallow(self, layers: int) -> Target:
        """An early exit behind so many layers."""
        ...

    def windowed(self, window: Window) -> Target:
        """A target that sees a window of its cache."""
        ...


def level_one_of(level: LevelOne, target: Target, folder: Path | None) -> Target:
    """Make a first-level verifier.

    Args:
        level: which one.
        target: level two.
        folder: of the target's plain checkpoint; None: there is none.

    Raises:
        TargetError: this target has no such level.
    """
    if level.name in ("four-bit", "bf16"):
        if folder is None:
            raise TargetError(
                f"level one of {level.about} is made from plain weights, and the target's are packed; give a "
                f"deployment with plain weights, or level one early-exit or window"
            )
        if level.name == "four-bit":
            return load_four_bit(folder, target.dtype, target.device)
        if target.dtype == torch.bfloat16:
            raise TargetError("level one in bfloat16: the target computes so itself; give another level one")
        return load_target(folder, torch.bfloat16, target.device)
    if level.name == "wy":
        if not isinstance(target, HybridTarget):
            raise TargetError("level one 'wy' is for recurrent layers, and the target has none")
        return target.dense_trees()
    if not isinstance(target, Reducible):
        raise TargetError(f"level one {level.name!r}: this target cannot be reduced")
    if level.layers is not None:
        return target.shallow(level.layers)
    if level.window is not None:
        return target.windowed(level.window)
    raise TargetError(f"level one {level.name!r} says neither layers nor a window")


def rewindable(target: Target, slots: int, capacity: int) -> RewindableCache:
    """A cache of a first-level verifier.

    Args:
        target: level one.
        slots: requests.
        capacity: positions of a request.
    """
    cache: RewindableCache = target.new_cache(slots, capacity)
    return cache
