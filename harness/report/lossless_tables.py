"""Tables of the evidence behind the verdict: what was forced, the margin, the tests, every divergence."""

from __future__ import annotations

from harness.report import numbers, sampled, text
from harness.report.tables import Rows, baseline
from harness.report.text import plain, told
from harness.results import Losslessness, Report

SHOWN = 20  # divergences and stop faults; report.json holds the rest


def losslessness(found: Losslessness) -> Rows:
    """The evidence behind the verdict of the whole run."""
    facts = [
        ("stock verdict", str(found.stock_verdict)),
        ("bitwise equal to the engine's own ar (self_exact)", numbers.bitwise(found.self_exact)),
        ("tokens forced through stock", str(found.tokens)),
        ("mismatches with stock's argmax", str(found.mismatches)),
        ("of those near ties", str(found.near_ties)),
        ("bound", numbers.bound(found)),
        *_margin(found),
        *_tests(found),
        ("stock", told(found.scorer)),
    ]
    return [{"fact": name, "value": value} for name, value in facts]


def _margin(found: Losslessness) -> list[tuple[str, str]]:
    margin = found.margin
    if margin is None:
        return [("near-tie margin m", numbers.ABSENT)]
    return [
        (
            "near-tie margin m",
            f"{numbers.logits(margin.value)} logits: 2 x the 99.9 % quantile "
            f"({numbers.logits(margin.quantile)}) of the largest logit difference of stock against itself",
        ),
        (
            "m was measured on",
            f"{margin.positions} positions of {margin.prompts} other prompts "
            f"({plain(', '.join(margin.shapes))}); largest difference {numbers.logits(margin.largest)}; "
            f"larger ones at less than {numbers.probability(margin.exceedance_bound)} of positions "
            "(3/N, 95 %)",
        ),
        (
            "blind share (stock's own top-2 gap is at most m)",
            f"{numbers.share(margin.blind_share)}; median gap {numbers.logits(margin.median_gap)} logits",
        ),
    ]


def _tests(found: Losslessness) -> list[tuple[str, str]]:
    facts = []
    if found.stock_noise is not None:
        noise = found.stock_noise
        facts.append(
            ("stock against stock", f"{noise.disagreements} disagreements at {noise.positions} positions")
        )
    if found.rate_test is not None:
        rate = found.rate_test
        facts.append(
            (
                "rate of near ties against stock's own (one-sided exact)",
                f"{rate.near_ties} at {rate.positions} positions, stock {rate.stock_disagreements} at "
                f"{rate.stock_positions}; {_outcome(rate.p_value, rate.level, passed=rate.passed)}",
            )
        )
    if found.sampled_test is not None:
        facts.append(("test above temperature 0", sampled.TESTS[found.sampled_test]))
    if found.distribution_test is not None:
        drawn = found.distribution_test
        facts.append(
            (
                "surprisal of the emitted tokens under stock (T > 0), arm furthest off",
                f"z = {drawn.z:.3g} over {drawn.tokens} tokens; "
                f"{_outcome(drawn.p_value, drawn.level, passed=drawn.passed)}",
            )
        )
    return facts


def _outcome(p_value: float, level: float, *, passed: bool) -> str:
    return f"p = {numbers.probability(p_value)}, level {level:g}: {'passed' if passed else 'FAILED'}"


def losslessness_by_arm(report: Report) -> Rows:
    """The oracle's verdict on each arm."""
    name = baseline(report)
    return [
        {
            "arm": text.name(arm.name),
            "stock verdict": str(found.stock_verdict),
            "self_exact": numbers.bitwise(found.self_exact),
            "responses": str(found.responses),
            f"same ids as {name}": "-" if found.ar_identical is None else str(found.ar_identical),
            "tokens forced": str(found.tokens),
            "mismatches": str(found.mismatches),
            "near ties": str(found.near_ties),
        }
        for arm in report.arms
        if (found := arm.losslessness) is not None
    ]


def divergences(found: Losslessness) -> Rows:
    """The first tokens that are not stock's argmax; those that nothing excuses lead."""
    return [
        {
            "prompt": text.name(d.prompt_id),
            "arm": text.name(d.arm),
            "launch": str(d.launch),
            "block": str(d.block),
            "position": str(d.position),
            "emitted": f"{d.token_id} {plain(repr(d.token_text))}",
            "stock": f"{d.stock_token_id} {plain(repr(d.stock_text))}",
            "gap, logits": numbers.logits(d.gap),
            "top two": numbers.yes_no(d.top_two),
            "near tie": numbers.yes_no(d.near_tie),
        }
        for d in found.divergences[:SHOWN]
    ]


def stop_faults(found: Losslessness) -> Rows:
    """Stops that the emitted ids do not explain."""
    return [
        {
            "prompt": text.name(fault.prompt_id),
            "arm": text.name(fault.arm),
            "launch": str(fault.launch),
            "block": str(fault.block),
            "position": "-" if fault.position is None else str(fault.position),
            "fault": plain(fault.fault),
        }
        for fault in found.stop_faults[:SHOWN]
    ]


def shown_of(total: int) -> str:
    """How many of a list are shown: "3", or "the first 20 of 57"."""
    return str(total) if total <= SHOWN else f"the first {SHOWN} of {total}"
