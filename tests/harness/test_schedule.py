"""The order of work inside a launch."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.measure.schedule import schedule
from harness.plan import MeasureSpec

ARMS = ("ar", "stock", "null")


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_every_prompt_meets_every_arm_once_a_block(batch: int) -> None:
    slots = schedule(ARMS, 7, MeasureSpec(blocks=3, batch=batch), launch=0)
    met = Counter((slot.block, slot.arm, prompt) for slot in slots for prompt in slot.prompts)
    assert met == Counter({(b, a, p): 1 for b in range(3) for a in ARMS for p in range(7)})
    assert [slot.order for slot in slots] == list(range(len(slots)))


def test_the_second_block_of_a_pair_mirrors_the_first() -> None:
    slots = schedule(ARMS, 6, MeasureSpec(blocks=2), launch=0)
    first = [(s.arm, s.prompts) for s in slots if s.block == 0]
    second = [(s.arm, s.prompts) for s in slots if s.block == 1]
    assert second == first[::-1]


def test_launches_and_seeds_draw_different_orders_and_repeat_their_own() -> None:
    def order(seed: int, launch: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(s.arm, s.prompts) for s in schedule(ARMS, 20, MeasureSpec(seed=seed), launch)]

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, launch)) for seed in (1, 2) for launch in (0, 1)}) == 4


def test_position_of_an_arm_is_balanced_over_a_mirrored_pair() -> None:
    """Linear drift meets every arm alike: the mean place of each arm over two blocks is the same."""
    slots = schedule(ARMS, 9, MeasureSpec(blocks=2), launch=3)
    places = {arm: [s.order for s in slots if s.arm == arm] for arm in ARMS}
    assert len({sum(orders) for orders in places.values()}) == 1
