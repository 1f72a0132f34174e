"""T > 0: how surprising an emitted token is under stock's own distribution at its position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import UndefinedMetric
from harness.records import Sampling
from harness.results import DistributionTest
from harness.stats.surprisal import distribution_test

LEVEL = 0.001  # no other evidence backs this test, and every arm of every run takes it


class Surprise(NamedTuple):
    """Log-probability of an emitted token, with its mean and variance under stock."""

    log_probability: float  # minus infinity for a token that stock cannot emit
    mean: float
    variance: float


def surprise(row: npt.NDArray[np.float32], token_id: int, sampling: Sampling, margin: float) -> Surprise:
    """Surprise of one token after temperature, top-k and top-p.

    A token just outside of top-k or top-p, by no more than stock's own noise, may be inside in
    another shape of stock; it counts as the least likely token inside.

    Args:
        row: adjusted logits [vocabulary].
        token_id: the emitted token.
        sampling: temperature above 0.
        margin: stock's own noise, in logits.
    """
    kept = _kept(row, sampling)
    scaled = row[kept].astype(np.float64) / sampling.temperature
    shift = float(scaled.max())
    log_total = shift + float(np.log(np.exp(scaled - shift).sum()))
    log_p = scaled - log_total
    p = np.exp(log_p)
    mean = float((p * log_p).sum())
    variance = float((p * log_p**2).sum()) - mean**2
    lowest = float(row[kept].min())
    logit = float(row[token_id])
    if logit < lowest:
        logit = lowest if lowest - logit <= margin else -np.inf
    return Surprise(logit / sampling.temperature - log_total, mean, max(0.0, variance))


def judge_surprises(surprises: Iterable[Surprise]) -> DistributionTest | None:
    """The test over distinct positions; None where there is too little to test."""
    seen = list(surprises)
    try:
        return distribution_test(
            [s.log_probability for s in seen],
            [s.mean for s in seen],
            [s.variance for s in seen],
            level=LEVEL,
        )
    except UndefinedMetric:
        return None


def _kept(row: npt.NDArray[np.float32], sampling: Sampling) -> npt.NDArray[np.bool_]:
    """Which tokens top-k, then top-p, leave; tokens equal to the last one kept stay too."""
    kept: npt.NDArray[np.bool_] = np.ones(len(row), dtype=np.bool_)
    if 0 < sampling.top_k < len(row):
        kept = row >= np.partition(row, -sampling.top_k)[-sampling.top_k]
    if sampling.top_p < 1.0:
        ordered = np.sort(row[kept])[::-1].astype(np.float64) / sampling.temperature
        p = np.exp(ordered - ordered[0])
        before = np.cumsum(p) - p
        last = int(np.flatnonzero(before < sampling.top_p * p.sum())[-1])
        kept = kept & (row >= np.float32(np.sort(row[kept])[::-1][last]))
    return kept
