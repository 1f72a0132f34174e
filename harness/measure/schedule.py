"""The order of work in a launch: blocks of all prompts and arms, every second one mirrored.

Arms are interleaved at the finest grain, request batch by request batch, so that slow drift of the
machine meets every arm alike; the mirrored block cancels what is left of it (ABBA).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from harness.plan import MeasureSpec


class Slot(NamedTuple):
    """One arm decoding one batch of prompts."""

    order: int  # place in the launch, counted from 0
    block: int
    arm: str
    prompts: tuple[int, ...]  # indices into the run's prompts


def schedule(arms: Sequence[str], prompts: int, measure: MeasureSpec, launch: int) -> tuple[Slot, ...]:
    """All slots of a launch.

    Each pair of blocks draws one order of the arms and one order of the prompts; the second block
    of the pair runs both backwards. Each prompt meets each arm once a block.
    """
    rng = random.Random(f"{measure.seed}/{launch}")  # noqa: S311 - an order, not a secret
    slots: list[Slot] = []
    arm_order, prompt_order = list(arms), list(range(prompts))
    for block in range(measure.blocks):
        if block % 2 == 0:
            rng.shuffle(arm_order)
            rng.shuffle(prompt_order)
        else:
            arm_order.reverse()
            prompt_order.reverse()
        for start in range(0, prompts, measure.batch):
            batch = tuple(prompt_order[start : start + measure.batch])
            for arm in arm_order:
                slots.append(Slot(order=len(slots), block=block, arm=arm, prompts=batch))
    return tuple(slots)
