"""From timed calls to the time of a step: differences, medians, ratios paired by round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

PLAIN, PACKED = "bf16", "weight12"
NAMES = {PLAIN: "stock", PACKED: "weight12"}  # of the arms that they are, in a summary
KINDS = (PLAIN, PACKED)
AR, DFLASH = "ar", "dflash"  # the two modes: autoregressive, and with a DFlash drafter


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generate call of an engine, all prompts at once.

    Attributes:
        batch: prompts.
        output: tokens asked of each prompt.
        tokens: emitted for all prompts together.
        wall_s: of the whole call, prefill included.
        drafts: verify steps of all prompts together, by vLLM's counter; None without a drafter.
    """

    batch: int
    output: int
    tokens: int
    wall_s: float
    drafts: float | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step in one round.

    Attributes:
        kind: `bf16` or `weight12`.
        mode: `ar` or `dflash`.
        round: its number; rounds pair the kinds.
        batch: prompts.
        step_ms: of one step of the whole batch.
        ms_per_token: of one token of each prompt.
        tokens_per_step: emitted by a prompt; 1 without a drafter.
        long_s: wall time of the long call.
        short_s: wall time of the short call.
    """

    kind: str
    mode: str
    round: int
    batch: int
    step_ms: float
    ms_per_token: float
    tokens_per_step: float
    long_s: float
    short_s: float


def sample(kind: str, mode: str, number: int, long: Call, short: Call) -> Sample:
    """The time of a step as the difference of two calls, so that prefill, start and end cancel.

    With a drafter a prompt's verify steps are counted, and the batch's are taken as their mean: prompts end
    at different steps, so at the tail of a call a step is of fewer prompts.

    Raises:
        ValueError: the calls are no measurement.
    """
    for call in (long, short):
        if call.tokens != call.batch * call.output:
            raise ValueError(f"{call.tokens} tokens came, {call.batch} x {call.output} were asked")
    wall = long.wall_s - short.wall_s
    if wall <= 0:
        raise ValueError(f"{long.output} tokens took no longer than {short.output}")
    tokens = (long.tokens - short.tokens) / long.batch
    steps = tokens
    if mode == DFLASH:
        if long.drafts is None or short.drafts is None or long.drafts <= short.drafts:
            raise ValueError("vLLM counted no drafts")
        steps = (long.drafts - short.drafts) / long.batch
    return Sample(
        kind=kind,
        mode=mode,
        round=number,
        batch=long.batch,
        step_ms=1e3 * wall / steps,
        ms_per_token=1e3 * wall / tokens,
        tokens_per_step=tokens / steps,
        long_s=long.wall_s,
        short_s=short.wall_s,
    )


def table(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """One row for each mode and batch: each kind's figures, and `speedup` where both kinds were timed.

    Figures are medians over rounds, with the least and the greatest; `speedup` is bf16 over weight12, the
    ratio taken within each round.
    """
    groups: dict[tuple[str, int], list[Sample]] = {}
    for one in samples:
        groups.setdefault((one.mode, one.batch), []).append(one)
    return [_row(mode, batch, groups[mode, batch]) for mode, batch in sorted(groups)]


def _row(mode: str, batch: int, samples: Sequence[Sample]) -> dict[str, Any]:
    row: dict[str, Any] = {"mode": mode, "batch": batch}
    by_round: dict[str, dict[int, float]] = {}
    for kind in KINDS:
        own = [one for one in samples if one.kind == kind]
        if not own:
            continue
        by_round[kind] = {one.round: one.step_ms for one in own}
        row[kind] = {
            "step_ms": spread(by_round[kind].values()),
            "ms_per_token": statistics.median(one.ms_per_token for one in own),
            "tokens_per_step": statistics.mean(one.tokens_per_step for one in own),
        }
    if len(by_round) == len(KINDS):
        plain, packed = by_round[PLAIN], by_round[PACKED]
        both = plain.keys() & packed.keys()
        if both:
            row["speedup"] = spread(plain[number] / packed[number] for number in both)
    return row


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and greatest of a figure over rounds."""
    known = sorted(values)
    return {"median": statistics.median(known), "min": known[0], "max": known[-1], "rounds": len(known)}


def step_ms(rows: Iterable[Mapping[str, Any]], mode: str = AR) -> dict[str, dict[str, float]]:
    """Median milliseconds of a step: [arm][batch as text], for the kinds that were timed."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        for kind in KINDS:
            if row["mode"] == mode and kind in row:
                median = row[kind]["step_ms"]["median"]
                found.setdefault(NAMES[kind], {})[str(row["batch"])] = round(median, 4)
    return found
