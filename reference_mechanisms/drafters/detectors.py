"""Names what is wrong with a drafter that loads, drafts and is only slow: no error is ever raised.

Pure functions over accuracies under teacher forcing (the share of rows whose best token is the text's own,
with the true tokens in front), and over weights. Which mistakes they know, and where each was met in public,
stands in the README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from reference_mechanisms.drafters.blocks import RMSNorm
from reference_mechanisms.drafters.loading import Network

Rows = Sequence[float]  # accuracy of each draft, the first first

HEAD_LEAST = 0.05
FIRST_FINE, REST_ZERO = 0.15, 0.02
REST_LEAST = 0.1  # of the first: what else chance may bring in a small vocabulary
FALLEN = 0.6
SLACK = 0.01  # of an expected length: less is chance


class Finding(NamedTuple):
    """What a detector says."""

    detector: str
    found: bool | None  # None: could not tell
    detail: str


def expected_length(rows: Rows) -> float:
    """Tokens a verify step buys if each draft is right with its accuracy once all before it are."""
    total, survival = 1.0, 1.0
    for accuracy in rows:
        survival *= accuracy
        total += survival
    return total


def tap_offset(by_offset: Mapping[int, Rows]) -> Finding:
    """Layers counted by another convention: taps one layer further up or down do better."""
    name = "tap offset"
    if 0 not in by_offset or len(by_offset) < 2:
        return Finding(name, None, "the target has no layer beside the tapped ones")
    lengths = {offset: expected_length(rows) for offset, rows in sorted(by_offset.items())}
    return _best_at_zero(name, lengths, "layers are counted by another convention")


def row_convention(by_shift: Mapping[int, Rows]) -> Finding:
    """Rows read one place off: they predict the token before or behind the one they are taken for."""
    lengths = {shift: 1 + sum(rows) for shift, rows in sorted(by_shift.items())}
    return _best_at_zero("row convention", lengths, "rows predict another place than they are read for")


def head_not_shared(rows: Rows) -> Finding:
    """Head, embedding or vocabulary of another model: next to nothing is right, the first draft included."""
    length = expected_length(rows)
    return Finding(
        "head not shared",
        rows[0] < HEAD_LEAST or length == 1.0,
        f"{rows[0]:.1%} of first drafts are right; below {HEAD_LEAST:.0%} head or vocabulary do not fit",
    )


def rows_behind_first(rows: Rows) -> Finding:
    """Wrong mask token, row or mask: the first draft is fine, and nothing behind it."""
    if len(rows) < 2:
        return Finding("rows behind the first", None, "it drafts one token")
    return Finding(
        "rows behind the first",
        rows[0] >= FIRST_FINE and max(rows[1:]) < max(REST_ZERO, REST_LEAST * rows[0]),
        f"{rows[0]:.1%} of first drafts are right, behind them at most {max(rows[1:]):.1%}; next to nothing "
        "there means a wrong mask token, row or mask",
    )


def falls_with_context(by_context: Mapping[int, float]) -> Finding:
    """Wrong window or rotation: accuracy falls as the context grows.

    Args:
        by_context: mean accuracy by the shortest context of each range.
    """
    name = "accuracy over the context"
    if len(by_context) < 2:
        return Finding(name, None, "all contexts are about as long")
    *earlier, last = (by_context[length] for length in sorted(by_context))
    told = ", ".join(f"{by_context[length]:.1%} from {length}" for length in sorted(by_context))
    return Finding(
        name,
        last < FALLEN * max(earlier),
        f"right drafts by tokens of context: {told}; a fall below {FALLEN:.0%} means a wrong window or "
        "rotation",
    )


def untrained_norms(network: Network) -> Finding:
    """An export that lost what was trained: every norm still is what it began as."""
    norms = [module for module in network.modules() if isinstance(module, RMSNorm)]
    ones = sum(bool((norm.weight == torch.ones_like(norm.weight)).all()) for norm in norms)
    return Finding(
        "untrained norms",
        ones == len(norms),
        f"{ones} of {len(norms)} norms are 1 everywhere; all of them means that nothing trained was stored",
    )


def last_layer_tap(taps: Sequence[int], target_layers: int) -> Finding:
    """The last layer is tapped: some programs hand out its state normed, others raw."""
    last = target_layers - 1
    return Finding(
        "last layer tapped",
        last in taps,
        f"taps {', '.join(map(str, taps))} of layers 0 to {last}; the state of the last one is handed out "
        "normed by some programs, raw by others",
    )


def _best_at_zero(name: str, lengths: Mapping[int, float], meaning: str) -> Finding:
    best = max(lengths, key=lambda one: (lengths[one], one == 0))
    told = ", ".join(f"{length:.3f} at {offset:+d}" for offset, length in lengths.items())
    found = best != 0 and lengths[best] > lengths[0] + SLACK
    return Finding(name, found, f"expected length {told}; a maximum beside 0 means that {meaning}")
