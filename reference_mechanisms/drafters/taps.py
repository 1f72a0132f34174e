"""Which of the target's layers a drafter reads, in the one convention of this house.

A tap is the output of a decoder layer counted from 0, before the final norm; -1 is the embedding. Other
programs count the layer whose input it is, one more: `from_inputs` converts. An index that is off by one
costs a few percent of acceptance and never raises an error, so every layout says which one it means.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.errors import DrafterError


def evenly_spaced(target_layers: int, count: int) -> tuple[int, ...]:
    """Taps of DFlash where none are named: from layer 1 to the third last, ties rounded to even."""
    if count == 1:
        return (target_layers // 2,)
    last = target_layers - 3
    return tuple(round(1 + index * (last - 1) / (count - 1)) for index in range(count))


def low_middle_high(target_layers: int) -> tuple[int, ...]:
    """Taps of EAGLE-3 where none are named."""
    return from_inputs((2, target_layers // 2, target_layers - 3))


def from_inputs(layers: Sequence[int]) -> tuple[int, ...]:
    """Taps of layers that are named by their input."""
    return tuple(layer - 1 for layer in layers)


def to_inputs(taps: Sequence[int]) -> tuple[int, ...]:
    """The same layers, named by their input."""
    return tuple(tap + 1 for tap in taps)


def check_taps(taps: Sequence[int], target_layers: int, where: str) -> tuple[int, ...]:
    """Hold that the target has these taps.

    Raises:
        DrafterError: one lies outside, comes twice, or is the last layer, whose state other programs
            hand out behind the final norm.
    """
    wrong = next((tap for tap in taps if not -1 <= tap < target_layers - 1), None)
    if wrong is not None:
        raise DrafterError(
            f"{where}: tap {wrong} is not among the layers -1..{target_layers - 2} of this target"
        )
    if len(set(taps)) != len(taps):
        raise DrafterError(f"{where}: a layer is tapped twice in {list(taps)}")
    return tuple(taps)
