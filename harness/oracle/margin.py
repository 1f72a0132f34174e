"""Stock's noise against itself: the near-tie margin, and how often its own argmax flips.

Measured, never chosen, and never from tokens of an arm: stock decodes calibration prompts greedily
in one-token steps, then the same ids are forced in other shapes of stock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidRun
from harness.oracle.force import Row, finite_rows, view
from harness.protocols import UNTOLD, Scorer
from harness.results import Margin, StockNoise
from harness.stats.error_rates import rule_of_three

QUANTILE = 0.999
Floats = npt.NDArray[np.float64]


class StockBaseline(NamedTuple):
    """What stock shows against itself."""

    margin: Margin
    noise: StockNoise


def measure_baseline(
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    verify_rows: int,
    stop_ids: Sequence[int],
    advance: Callable[[int], None],
) -> StockBaseline:
    """Measure the margin and stock's own disagreement.

    The margin compares one-token steps with the verify shape. The disagreement adds the prefill,
    the shape that emitted tokens are forced in; each position counts once for each shape. The first
    token of a prompt is left out: it comes from the same prefill in every stepping shape.

    Args:
        scorer: stock.
        prompts: token ids of the calibration prompts, disjoint from the run.
        tokens: decoded per prompt, fewer if stock stops.
        verify_rows: rows of the verify shape.
        stop_ids: ids that end stock's output.
        advance: told 1 after each prompt.

    Raises:
        InvalidRun: no position could be measured.
    """
    differences: list[Floats] = []
    gaps: list[float] = []
    flips = compared = 0
    for prompt in prompts:
        ids, steps = _decode(scorer, prompt, tokens, stop_ids)
        if len(ids) > 1:
            verify = list(_against(steps, scorer.logits(prompt, ids, verify_rows)))
            prefill = list(_against(steps, scorer.logits(prompt, ids, None)))
            differences.append(np.array([d.largest for d in verify[1:]]))
            gaps += [position.top_logit - position.runner_up_logit for position in map(view, steps, ids)][1:]
            flips += sum(d.flipped for d in (*verify[1:], *prefill[1:]))
            compared += 2 * (len(ids) - 1)
        advance(1)
    if not differences:
        raise InvalidRun(
            "stock's noise cannot be measured: no calibration prompt gave two tokens; "
            "raise `oracle.calibration_prompts` or `oracle.calibration_tokens`"
        )
    shapes = tuple(
        scorer.describe().get("shapes", ("one-token steps", f"{verify_rows}-row steps", "prefill"))
    )
    margin = _margin(np.concatenate(differences), np.array(gaps), shapes, len(differences))
    return StockBaseline(margin, StockNoise(disagreements=flips, positions=compared))


class _Difference(NamedTuple):
    largest: float  # largest logit difference over the vocabulary
    flipped: bool  # another argmax


def _decode(
    scorer: Scorer, prompt: Sequence[int], tokens: int, stop_ids: Sequence[int]
) -> tuple[tuple[int, ...], list[Row]]:
    ids: list[int] = []
    rows: list[Row] = []
    for token, row in islice(scorer.greedy(prompt), tokens):
        ids.append(token)
        rows.append(row)
        if token in stop_ids:
            break
    return tuple(ids), rows


def _against(steps: Sequence[Row], chunks: Iterable[npt.NDArray[np.float32]]) -> Iterator[_Difference]:
    for step, row in zip(finite_rows([np.stack(steps)]), finite_rows(chunks), strict=True):
        told = (step > UNTOLD) & (row > UNTOLD)  # a server tells of the best tokens only
        difference = np.abs(step[told] - row[told])
        yield _Difference(float(difference.max(initial=0.0)), bool(step.argmax() != row.argmax()))


def _margin(differences: Floats, gaps: Floats, shapes: tuple[str, ...], prompts: int) -> Margin:
    quantile = float(np.quantile(differences, QUANTILE))
    value = 2.0 * quantile
    return Margin(
        value=value,
        quantile=quantile,
        largest=float(differences.max()),
        positions=len(differences),
        exceedance_bound=rule_of_three(len(differences)),
        blind_share=float(np.mean(gaps <= value)),
        median_gap=float(np.median(gaps)),
        shapes=shapes,
        prompts=prompts,
    )
