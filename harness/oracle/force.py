"""Emitted tokens forced through stock: its view of every position, one row in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import InvalidRun
from harness.oracle.adjust import Adjuster
from harness.oracle.distribution import Surprise, require_told, surprise
from harness.oracle.stops import StopRules
from harness.protocols import ForcedPosition

Row = npt.NDArray[np.float32]  # [vocabulary]


class Forced(NamedTuple):
    """One distinct emitted sequence, seen by stock."""

    positions: tuple[ForcedPosition, ...]
    surprises: tuple[Surprise, ...]  # per position at T > 0; empty when greedy


def force(
    chunks: Iterable[npt.NDArray[np.float32]],
    prompt_token_ids: Sequence[int],
    token_ids: Sequence[int],
    rules: StopRules,
    margin: float,
) -> Forced:
    """Stock's two best tokens and the emitted one's logit, at every emitted position.

    Args:
        chunks: raw logits [positions, vocabulary] of a scorer, for these tokens.
        prompt_token_ids: the prompt.
        token_ids: the emitted tokens, all within the vocabulary.
        rules: of the run; penalties and `min_tokens` are applied to the raw logits.
        margin: stock's own noise, for tokens at the edge of top-k and top-p.

    Raises:
        InvalidRun: stock gave NaN, or not one row per token.
    """
    positions: list[ForcedPosition] = []
    surprises: list[Surprise] = []
    rows = adjusted_rows(chunks, prompt_token_ids, token_ids, rules)
    following = (*token_ids[1:], None)
    for token, after, row in zip(token_ids, following, rows, strict=True):
        positions.append(view(row, token))
        if not rules.sampling.greedy:
            surprises.append(surprise(row, token, rules.sampling, margin, after))
    return Forced(tuple(positions), tuple(surprises))


def adjusted_rows(
    chunks: Iterable[npt.NDArray[np.float32]],
    prompt_token_ids: Sequence[int],
    token_ids: Sequence[int],
    rules: StopRules,
) -> Iterator[Row]:
    """The logits [vocabulary] that each emitted token was chosen from.

    Raises:
        InvalidRun: stock gave NaN, not one row per token, or told too few tokens of a position.
    """
    adjuster = Adjuster(rules.sampling, prompt_token_ids, tuple(rules.stop_ids))
    raw = finite_rows(chunks)
    for index, token in enumerate(token_ids):
        row = next(raw, None)
        if row is None:
            raise InvalidRun(f"the scorer gave {index} rows for {len(token_ids)} tokens")
        require_told(row, rules.sampling)
        yield adjuster.adjusted(row)
        adjuster.emit(token)
    if next(raw, None) is not None:
        raise InvalidRun(f"the scorer gave more rows than the {len(token_ids)} tokens it was asked for")


def finite_rows(chunks: Iterable[npt.NDArray[np.float32]]) -> Iterator[Row]:
    """Rows of chunks, in order.

    Raises:
        InvalidRun: a logit is NaN or infinite.
    """
    for chunk in chunks:
        if not np.isfinite(chunk).all():
            raise InvalidRun("stock's logits hold NaN or infinity: its weights or its dtype cannot be right")
        yield from chunk


def view(row: Row, token_id: int) -> ForcedPosition:
    """Stock's view of one token from the logits before it; lowest id on ties."""
    top = int(row.argmax())
    rest = row.copy()
    rest[top] = -np.inf
    runner_up = int(rest.argmax())
    return ForcedPosition(
        token_id=token_id,
        top_id=top,
        runner_up_id=runner_up,
        top_logit=float(row[top]),
        runner_up_logit=float(row[runner_up]),
        token_logit=float(row[token_id]),
    )
