"""T > 0: how surprising an emitted token is under stock's own distribution at its position.

The protocol: every request has a seed of its own, the same in every arm and block. Each arm's first
response on a prompt is a draw; its tokens are tested against stock's processed distribution (after
temperature, top-k and top-p) at every position, at one declared level, and the report tells the
sample size and what the test would have caught. Repeats of a seed are no further draws.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from harness.errors import InvalidRun, UndefinedMetric
from harness.protocols import UNTOLD
from harness.records import Sampling
from harness.results import DistributionTest
from harness.stats.power import Stock, Tails, other_temperature, smallest
from harness.stats.surprisal import distribution_test

LEVEL = 0.001  # no other evidence backs this test, and every arm of every run takes it


class Surprise(NamedTuple):
    """Log-probability of an emitted token, what it should be, and what it would be if stock were left."""

    log_probability: float  # minus infinity for a token that stock cannot emit
    mean: float  # of the log-probability under stock
    variance: float
    spread: float = 0.0  # mean distance of the log-probability from its mean
    third: float = 0.0  # central moments
    fourth: float = 0.0
    best: float = 0.0  # log-probability of stock's best token
    second: float = -np.inf  # of its second best
    dropped: float | None = None  # of the token emitted next, as if this one had been lost; None at the end


def surprise(
    row: npt.NDArray[np.float32],
    token_id: int,
    sampling: Sampling,
    margin: float,
    following: int | None = None,
) -> Surprise:
    """Surprise of one token after temperature, top-k and top-p.

    A token just outside of top-k or top-p, by no more than stock's own noise, may be inside in
    another shape of stock; it counts as the least likely token inside.

    Args:
        row: adjusted logits [vocabulary], or any constant more: log-probabilities will do.
        token_id: the emitted token.
        sampling: temperature above 0.
        margin: stock's own noise, in logits.
        following: the token emitted next, if any.
    """
    kept = _kept(row, sampling)
    scaled = row[kept].astype(np.float64) / sampling.temperature
    shift = float(scaled.max())
    log_total = shift + float(np.log(np.exp(scaled - shift).sum()))
    log_p = scaled - log_total
    p = np.exp(log_p)
    mean = float((p * log_p).sum())
    lowest = float(row[kept].min())

    def told(token: int) -> float:
        logit = float(row[token])
        if logit < lowest:
            logit = lowest if lowest - logit <= margin else -np.inf
        return logit / sampling.temperature - log_total

    two = np.sort(np.partition(log_p, -2)[-2:]) if len(log_p) > 1 else np.array([-np.inf, log_p[0]])
    return Surprise(
        log_probability=told(token_id),
        mean=mean,
        variance=max(0.0, float((p * log_p**2).sum()) - mean**2),
        spread=float((p * np.abs(log_p - mean)).sum()),
        third=float((p * (log_p - mean) ** 3).sum()),
        fourth=float((p * (log_p - mean) ** 4).sum()),
        best=float(two[1]),
        second=float(two[0]),
        dropped=None if following is None else told(following),
    )


def judge_surprises(surprises: Iterable[Surprise]) -> DistributionTest | None:
    """The test over independent positions, with its power; None where there is too little to test."""
    seen = list(surprises)
    try:
        found = distribution_test(
            [s.log_probability for s in seen],
            [s.mean for s in seen],
            [s.variance for s in seen],
            level=LEVEL,
        )
    except UndefinedMetric:
        return None
    best, second = np.array([s.best for s in seen]), np.array([s.second for s in seen])
    dropped = np.array([np.nan if s.dropped is None else s.dropped for s in seen])
    tails = Tails(
        np.array([s.spread for s in seen]),
        np.array([s.third for s in seen]),
        np.array([s.fourth for s in seen]),
    )
    stock = Stock(np.array([s.mean for s in seen]), np.array([s.variance for s in seen]), LEVEL)
    return msgspec.structs.replace(
        found,
        detects=(
            smallest(stock, "stock's best token in place of a draw", best, 1.0 - np.exp(best)),
            smallest(stock, "stock's second best token in place of a draw", second, 1.0 - np.exp(second)),
            smallest(stock, "a token dropped", dropped, None),
            other_temperature(stock, tails, colder=True),
            other_temperature(stock, tails, colder=False),
        ),
    )


def require_told(row: npt.NDArray[np.float32], sampling: Sampling) -> None:
    """Hold that stock told enough of a position to know what a token was drawn from.

    Args:
        row: raw logits or log-probabilities [vocabulary]; `UNTOLD` where stock tells none.
        sampling: of the run.

    Raises:
        InvalidRun: a token that was not told could matter.
    """
    told = int(np.count_nonzero(row > UNTOLD))
    if told == len(row):
        return
    penalised = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0
    if penalised or sampling.min_tokens:
        raise InvalidRun(
            f"stock told {told} tokens of {len(row)} at a position; penalties and `sampling.min_tokens` need "
            "all of them: name a scorer that has the weights in `oracle.scorer`"
        )
    if not sampling.greedy and not 0 < sampling.top_k <= told:
        raise InvalidRun(
            f"stock told {told} tokens of {len(row)} at a position; above temperature 0 `sampling.top_k` "
            f"must be in 1..{told} then, or `oracle.scorer` name a scorer that has the weights"
        )


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
