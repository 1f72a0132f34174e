"""One interface of the three policies: what the engine decodes with in place of a target and a drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.target import RewindableCache, Target
from reference_mechanisms.verification.two_level.figures import Setup, read_figures
from reference_mechanisms.verification.two_level.gain import Measured, best_rounds
from reference_mechanisms.verification.two_level.holding import Holding, HoldingDrafter
from reference_mechanisms.verification.two_level.level_one import LevelOne, rewindable
from reference_mechanisms.verification.two_level.rechecking import GreedyOnly, RecheckedTarget
from reference_mechanisms.verification.two_level.settings import TwoLevelError, TwoLevelSettings
from reference_mechanisms.verification.two_level.staging import StagingDrafter


class Levels(NamedTuple):
    """Both levels, and the sizes of what is decoded on them."""

    target: Target
    make: Callable[[LevelOne], Target]  # a first level; called when one is needed
    eos_ids: Sequence[int]
    capacity: int  # positions of a request, prompt and output
    nodes: int  # of a draft tree, 0 for chains
    rows: int  # of a step without two levels


class TwoLevel:
    """Two-level verification of one arm."""

    def __init__(self, settings: TwoLevelSettings, levels: Levels, taps: Sequence[int], setup: Setup) -> None:
        """Make the first level, unless measured figures say that it does not pay.

        Args:
            settings: of the arm.
            levels: what it decodes with.
            taps: layers that the arm's drafter reads.
            setup: what measured figures must be of.

        Raises:
            FiguresError: the figures cannot be used.
            TargetError: the target has no such level.
            TwoLevelError: the drafter reads what level one does not have.
        """
        self._settings, self._levels = settings, levels
        self._cache: RewindableCache | None = None
        self._level_one: Target | None = None
        self._holding = settings.holding
        self.about = settings.about
        self.target = levels.target
        if settings.gain_figures is not None and self._holding is not None:
            self._choose(read_figures(settings.gain_figures, setup), self._holding)
        if settings.level_one is None or (settings.policy == "hold" and self._holding is None):
            return
        self._level_one = levels.make(settings.level_one)
        layers = self._level_one.config.layers
        rounds = 0 if self._holding is None else self._holding.rounds
        if rounds > 1 and max(taps, default=-1) >= layers:
            raise TwoLevelError(
                f"`level_one_layers` is {layers}, and the drafter reads layer {max(taps)}, counted from 0; "
                f"give more layers, `rounds` = 1 or a drafter that reads less"
            )
        if settings.trusts_level_one:
            self.target = RecheckedTarget(self._level_one, levels.target, settings.margin, levels.rows)

    def drafter(self, inner: Drafter, requests: int) -> Drafter:
        """What drafts for the engine.

        Args:
            inner: the arm's own drafter, new.
            requests: of the batch.
        """
        if self._settings.policy == "stage":
            return StagingDrafter(inner, self._settings.stage_first)
        if self._settings.trusts_level_one:
            return GreedyOnly(inner)
        if self._level_one is None or self._holding is None:
            return inner
        if self._cache is None or self._cache.slots < requests:
            positions = self._levels.capacity + self._levels.nodes
            self._cache = rewindable(self._level_one, requests, positions)
        return HoldingDrafter(self._level_one, self._cache, inner, self._holding, self._levels.eos_ids)

    def _choose(self, measured: Measured, holding: Holding) -> None:
        found = best_rounds(measured, holding.rounds)
        if not found.rounds:
            self._holding = None
            self.about = f"level one is off: the measured figures give {found.gain:.2f} times the speed"
            return
        self._holding = dataclasses.replace(holding, rounds=found.rounds)
        self.about = (
            f"{dataclasses.replace(self._settings, holding=self._holding).about}; the measured figures give "
            f"{found.gain:.2f} times the speed"
        )
