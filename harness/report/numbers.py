"""How numbers are written in every report: one place, so that they read alike everywhere."""

from __future__ import annotations

from harness.results import ArmResult, Interval, Losslessness

WIDEST = 25.0  # high over low; a wider interval is told in words
ABSENT = "not measured"


def informative(interval: Interval) -> bool:
    """Whether an interval says more than that the ratio is some number."""
    return interval.high <= WIDEST * interval.low


def ratio(interval: Interval | None) -> str:
    """A speedup with its interval: "1.34x [1.29, 1.39]"."""
    if interval is None:
        return ABSENT
    if interval.low == interval.high == interval.point:
        return f"{interval.point:.2f}x"
    if not informative(interval):
        return f"{interval.point:.2f}x (too little data for an interval)"
    return f"{interval.point:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def rate(value: float | None) -> str:
    """Tokens per second."""
    return ABSENT if value is None else f"{value:.1f}"


def length(value: float | None) -> str:
    """Acceptance length, tokens per verify step."""
    return ABSENT if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    """A share of 1, in percent."""
    return ABSENT if value is None else f"{100.0 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    """A duration in ms."""
    return ABSENT if value is None else f"{value:.1f}"


def probability(value: float | None) -> str:
    """A small probability or bound."""
    return ABSENT if value is None else f"{value:.2g}"


def logits(value: float) -> str:
    """A logit or a difference of two."""
    return f"{value:.4g}"


def percent(value: float) -> str:
    """A level chosen by a person: "95 %"."""
    return f"{100.0 * value:g} %"


def yes_no(value: bool | None) -> str:
    """Three states of a check."""
    return "no verdict" if value is None else "yes" if value else "NO"


def speed_verdict(arm: ArmResult) -> str:
    """Whether the arm is faster than `ar`, in one word."""
    return ABSENT if arm.verdict is None else str(arm.verdict)


def stock_verdict(arm: ArmResult) -> str:
    """The oracle's word on an arm, with what it rests on."""
    found = arm.losslessness
    if found is None:
        return ABSENT
    text = str(found.stock_verdict)
    if found.mismatches:
        text += f" ({found.near_ties} near ties, {found.mismatches - found.near_ties} violations)"
    return text


def bitwise(found: bool | None) -> str:
    """Whether logits were bitwise those of the engine's own `ar`."""
    return "not captured" if found is None else "yes" if found else "no"


def bound(found: Losslessness) -> str:
    """The 3/N bound in words."""
    if found.error_bound is None:
        return "no bound"
    return (
        f"error rate below {found.error_bound:.2g} per token at 95 % "
        f"(3/N over {found.distinct_positions} distinct positions)"
    )
