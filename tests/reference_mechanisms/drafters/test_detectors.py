from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_mechanisms.drafters import detectors
from reference_mechanisms.drafters.detectors import Finding
from tests.reference_mechanisms.drafters.networks import dflash, eagle3

HEALTHY = (0.7, 0.6, 0.5)
CASES: dict[str, tuple[Callable[[Any], Finding], Any, Any, Any]] = {
    "tap offset": (
        detectors.tap_offset,
        {-1: (0.5, 0.3, 0.2), 0: HEALTHY, 1: (0.6, 0.6, 0.5)},
        {-1: (0.5, 0.3, 0.2), 0: (0.6, 0.6, 0.5), 1: HEALTHY},
        {0: HEALTHY},
    ),
    "row convention": (
        detectors.row_convention,
        {-1: (0.1, 0.1, 0.1), 0: HEALTHY, 1: (0.1, 0.0, 0.0)},
        {-1: HEALTHY, 0: (0.1, 0.1, 0.1), 1: (0.1, 0.0, 0.0)},
        None,
    ),
    "head not shared": (detectors.head_not_shared, HEALTHY, (0.04, 0.5, 0.5), None),
    "rows behind the first": (detectors.rows_behind_first, HEALTHY, (0.34, 0.0, 0.0), (0.5,)),
    "accuracy over the context": (
        detectors.falls_with_context,
        {0: 0.5, 256: 0.6, 1024: 0.4},
        {0: 0.5, 256: 0.6, 1024: 0.3},
        {0: 0.5},
    ),
    "last layer tapped": (lambda taps: detectors.last_layer_tap(taps, 30), (1, 28), (1, 29), None),
}


@pytest.mark.parametrize(("detector", "healthy", "broken", "unknown"), CASES.values(), ids=CASES)
def test_the_broken_one_is_named_and_the_healthy_one_is_not(
    request: pytest.FixtureRequest,
    detector: Callable[[Any], Finding],
    healthy: Any,
    broken: Any,
    unknown: Any,
) -> None:
    assert detector(healthy).found is False
    assert detector(broken).found is True
    assert detector(broken).detector in request.node.name
    if unknown is not None:
        assert detector(unknown).found is None


def test_an_even_result_or_chance_is_no_finding() -> None:
    even = {-1: HEALTHY, 0: HEALTHY, 1: HEALTHY}
    assert detectors.tap_offset(even).found is False
    assert detectors.row_convention(even | {1: (0.702, 0.602, 0.502)}).found is False


def test_a_healthy_start_with_a_weak_rest_is_no_broken_mask() -> None:
    assert detectors.rows_behind_first((0.5, 0.06, 0.0)).found is False
    assert detectors.rows_behind_first((0.05, 0.0, 0.0)).found is False  # the head, not the mask


@pytest.mark.parametrize("make", [dflash, eagle3])
def test_norms_that_all_are_one_were_never_trained(make: Any) -> None:
    network = make()
    assert detectors.untrained_norms(network).found is False
    for name, weight in network.named_parameters():
        if "norm" in name:
            weight.copy_(torch.ones_like(weight))
    assert detectors.untrained_norms(network).found is True


def test_the_expected_length_multiplies_what_survives() -> None:
    assert detectors.expected_length((0.5, 0.5)) == 1.75
