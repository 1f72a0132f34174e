"""Drafters as device programs; whole decodes with them are in `engine/test_static_steps.py`."""

from __future__ import annotations

import pytest
import torch

from reference_mechanisms.drafters.blocks import Reach, visible
from reference_mechanisms.drafters.static import bounds


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("window", [None, 1, 3, 7, 50])
def test_bounds_hold_what_is_visible_before_the_end(causal: bool, window: int | None) -> None:
    reach, index, positions = Reach(causal, window), torch.arange(40), torch.arange(20, 26)
    for end in (26, 31):
        low, high = bounds(positions, torch.tensor([end]), reach)
        found = (index >= low[:, None]) & (index < high[:, None])
        assert torch.equal(found, visible(positions, index, reach) & (index < end))
