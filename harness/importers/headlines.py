"""The same data, four headlines: what each way of averaging makes of the same requests.

Pure. Only the total-time ratio is what a user of the workload gains; the others give a short request
as much weight as a long one, and can say "faster" of something that took longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import UndefinedMetric, UsageError
from harness.importers.records import Imported, ImportedRequest

Floats = npt.NDArray[np.float64]
SHORTEST = 1e-9  # seconds of a request
Recount = Callable[[str], int]  # tokens of a text, special ones included


class Headline(NamedTuple):
    """One way to put it."""

    name: str
    used_by: str
    formula: str
    speedup: float


class Lengths(NamedTuple):
    """Acceptance length two ways."""

    steps_alike: float  # all verify steps pooled
    requests_alike: float  # mean of the requests' own means


class Headlines(NamedTuple):
    """Two files, the requests both have, and every headline."""

    requests: int
    left_out: int
    token_difference: int  # tokens of the method minus tokens of the baseline
    found: tuple[Headline, ...]
    lengths: Lengths | None
    without_first: float | None  # total-time ratio without the baseline's first request; None: only one


class _Paired(NamedTuple):
    """Seconds and tokens of the same requests, [requests]."""

    keys: tuple[str, ...]
    base_s: Floats
    base_tokens: Floats
    spec_s: Floats
    spec_tokens: Floats
    recounted: Floats | None  # baseline tokens as Spec-Bench counts them


def headlines(baseline: Imported, method: Imported, recount: Recount | None = None) -> Headlines:
    """Every headline from the requests that both files have.

    Args:
        baseline: results of autoregressive decoding.
        method: results with speculation.
        recount: the target's tokenizer, to show what re-tokenising the baseline alone does.

    Raises:
        UndefinedMetric: no request can be paired: there are none, or they carry no key, tokens or time.
    """
    paired, left_out = _pair(baseline, method, recount)
    base_rate, spec_rate = paired.base_tokens / paired.base_s, paired.spec_tokens / paired.spec_s
    total = (paired.spec_tokens.sum() / paired.spec_s.sum()) / (
        paired.base_tokens.sum() / paired.base_s.sum()
    )
    found = [
        Headline(
            "total time", "this harness", "sum of times of the baseline / sum of times, per token", total
        ),
        Headline(
            "mean of tokens/s",
            "Spec-Bench, EAGLE",
            "mean over requests of tokens/s / that of the baseline",
            spec_rate.mean() / base_rate.mean(),
        ),
        Headline(
            "mean time per token",
            "dflash",
            "mean over requests of the baseline's seconds/token / that of the method",
            (1.0 / base_rate).mean() / (1.0 / spec_rate).mean(),
        ),
        Headline(
            "typical request",
            "this harness, second",
            "geometric mean over requests of the ratio",
            float(np.exp(np.log(spec_rate / base_rate).mean())),
        ),
    ]
    if paired.recounted is not None:
        asymmetric = spec_rate.mean() / (paired.recounted / paired.base_s).mean()
        found.append(
            Headline(
                "mean of tokens/s, baseline re-tokenised",
                "Spec-Bench's speed.py",
                "as the second, the baseline's text re-tokenised less one token a turn",
                asymmetric,
            )
        )
    return Headlines(
        requests=len(paired.base_s),
        left_out=left_out,
        token_difference=int(paired.spec_tokens.sum() - paired.base_tokens.sum()),
        found=tuple(one._replace(speedup=float(one.speedup)) for one in found),
        lengths=_lengths(method),
        without_first=_without_first(paired, _first(baseline, paired.keys)),
    )


def _pair(baseline: Imported, method: Imported, recount: Recount | None) -> tuple[_Paired, int]:
    base = {one.key: one for one in baseline.requests if one.key is not None}
    own = {one.key: one for one in method.requests if one.key is not None}
    keys = [key for key in own if key in base and all(_is_measured(one) for one in (base[key], own[key]))]
    if not keys:
        raise UndefinedMetric(
            f"{baseline.source} and {method.source} share no request with tokens and a time: save details "
            "of each request (--save-detailed, --output-details), on the same prompts in the same order"
        )
    recounted = None
    if recount is not None:
        texts = [base[key].texts for key in keys]
        if any(text is None for text in texts):
            raise UsageError(f"--tokenizer: {baseline.source} holds no text to re-tokenise")
        recounted = np.array([float(sum(recount(turn) - 1 for turn in text or ())) for text in texts])
    left_out = max(len(baseline.requests), len(method.requests)) - len(keys)
    return (
        _Paired(
            tuple(keys),
            np.array([base[key].seconds for key in keys], dtype=np.float64),
            np.array([base[key].output_tokens for key in keys], dtype=np.float64),
            np.array([own[key].seconds for key in keys], dtype=np.float64),
            np.array([own[key].output_tokens for key in keys], dtype=np.float64),
            recounted,
        ),
        left_out,
    )


def _is_measured(one: ImportedRequest) -> bool:
    """Whether it has tokens and a time that a clock can tell from none."""
    return bool(one.output_tokens) and one.seconds is not None and one.seconds >= SHORTEST


def _first(baseline: Imported, keys: Sequence[str]) -> int:
    """Place of the request that the baseline answered first."""
    order = [one.key for one in baseline.requests if one.key in keys]
    return list(keys).index(str(order[0]))


def _without_first(paired: _Paired, first: int) -> float | None:
    kept = np.arange(len(paired.base_s)) != first
    if not kept.any():
        return None
    spec_rate = paired.spec_tokens[kept].sum() / paired.spec_s[kept].sum()
    return float(spec_rate / (paired.base_tokens[kept].sum() / paired.base_s[kept].sum()))


def _lengths(method: Imported) -> Lengths | None:
    steps: Sequence[tuple[float, ...]] = [r.accept_lengths for r in method.requests if r.accept_lengths]
    if not steps:
        return None
    pooled = [length for own in steps for length in own]
    return Lengths(float(np.mean(pooled)), float(np.mean([np.mean(own) for own in steps])))
