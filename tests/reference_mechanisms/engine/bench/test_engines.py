from __future__ import annotations

import pytest

from reference_mechanisms.engine.bench.engines import drafter_config, drafter_needs
from reference_mechanisms.errors import DrafterError


def test_the_drafter_of_a_shape_is_the_published_one() -> None:
    config = drafter_config("Qwen3-8B")
    assert (len(config.reaches), config.drafts, config.taps) == (5, 15, (1, 9, 17, 25, 33))
    # 1.05 G weights as published; keys and values of the context lie in a matrix of their own besides
    context = 5 * 2 * 1024 * 4096
    assert drafter_needs(config, "bf16").weights == 2 * (1_048_576_000 + context)


def test_a_shape_without_a_drafter_is_refused() -> None:
    with pytest.raises(DrafterError, match="Qwen3-14B"):
        drafter_config("Qwen3-14B")
