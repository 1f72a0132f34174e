"""The verdict in one sentence for people. The only place that writes the word "lossless"."""

from __future__ import annotations

from typing import Literal

from harness.plan import Division
from harness.results import Divergence, Losslessness, StopFault

CLAIMING: tuple[Division, ...] = ("exact-greedy", "distribution")
WEAK_BLIND_SHARE = 0.02  # above it, a swap of stock's two best tokens would too often go unseen


def statement(found: Losslessness, division: Division, label: Literal["smoke", "full"]) -> str:
    """What the verdict says and what it does not.

    Args:
        found: the verdict and its evidence; its own statement is ignored.
        division: only exact-greedy and distribution may say "lossless".
        label: a smoke run says that it is one.
    """
    if found.stock_verdict == "violated":
        return f"Violated: {_violation(found)}."
    if found.stock_verdict == "not-judged":
        return _not_judged(found)
    exact = found.stock_verdict == "exact"
    what = _exact(found) if exact else _near_tie(found)
    if division not in CLAIMING:
        return f"{what[0].upper()}{what[1:]}; a result of division {division} makes no claim beyond that."
    head = "Lossless" if exact else "Lossless up to near ties"
    smoke = " in this smoke run, which is too small to stand behind a claim" if label == "smoke" else ""
    return f"{head}{smoke}: {what}."


def place(found: Divergence | StopFault) -> str:
    """Where something happened, as a person looks it up."""
    where = f"arm {found.arm}, prompt {found.prompt_id}, launch {found.launch}, block {found.block}"
    return where if found.position is None else f"{where}, position {found.position}"


def divergence_text(found: Divergence, margin: float) -> str:
    """One divergence in words."""
    rank = "" if found.top_two else ", and the token is not among stock's top two"
    return (
        f"{place(found)}: emitted {found.token_text!r} (token {found.token_id}), stock's argmax is "
        f"{found.stock_text!r} (token {found.stock_token_id}), gap {found.gap:.4g} logits, "
        f"margin {margin:.4g}{rank}"
    )


def _exact(found: Losslessness) -> str:
    text = f"each of the {found.tokens} emitted tokens is stock's argmax (verdict exact)"
    return f"{text}, {_bound(found)}"


def _near_tie(found: Losslessness) -> str:
    margin, rate = found.margin, found.rate_test
    text = (
        f"{found.mismatches} of the {found.tokens} emitted tokens are not stock's argmax, all of them near "
        f"ties (verdict near-tie)"
    )
    if margin is not None:
        text += f" within the measured margin of {margin.value:.3g} logits"
    if rate is not None:
        text += (
            f", no more frequent than stock against itself ({rate.near_ties} at {rate.positions} positions, "
            f"stock {rate.stock_disagreements} at {rate.stock_positions}, p = {rate.p_value:.2g})"
        )
    if margin is not None and margin.blind_share > WEAK_BLIND_SHARE:
        text += (
            f"; the check is weak here: at {margin.blind_share:.0%} of positions stock's two best tokens lie "
            "within the margin, so a rare swap of the two would pass"
        )
    return f"{text}; {_bound(found)}"


def _bound(found: Losslessness) -> str:
    bound = found.error_bound if found.error_bound is not None else 1.0
    return (
        f"which bounds the rate of any other token at {bound:.2g} per token "
        f"(95 %, 3/N, {found.distinct_positions} distinct positions)"
    )


def _violation(found: Losslessness) -> str:
    margin = found.margin.value if found.margin is not None else 0.0
    if found.stop_faults:
        first = found.stop_faults[0]
        more = f" ({len(found.stop_faults)} such responses)" if len(found.stop_faults) > 1 else ""
        return f"{place(first)}: {first.fault}{more}"
    unexcused = [d for d in found.divergences if not d.near_tie]
    if unexcused:
        wrong = found.mismatches - found.near_ties
        more = f" ({wrong} such tokens of {found.tokens})" if wrong > 1 else ""
        return f"{divergence_text(unexcused[0], margin)}{more}"
    test = found.distribution_test
    if test is not None and not test.passed:
        how = "likely" if test.z > 0 else "unlikely"
        return (
            f"the emitted tokens are too {how} under stock's own distribution "
            f"(z = {test.z:.3g}, p = {test.p_value:.2g}, {test.tokens} tokens)"
        )
    rate = found.rate_test
    assert rate is not None, "a verdict of violated has a reason"  # noqa: S101
    return (
        f"near ties at {rate.near_ties} of {rate.positions} positions are more frequent than stock against "
        f"itself, {rate.stock_disagreements} of {rate.stock_positions} (p = {rate.p_value:.2g})"
    )


def _not_judged(found: Losslessness) -> str:
    test = found.distribution_test
    if found.tokens == 0:
        return "Not judged: no response finished."
    seeded = ""
    if found.sampled_test == "seeded":
        seeded = "; under the same seed every arm gave the baseline's own ids, response by response"
    if test is None:
        return (
            f"Not judged token by token: sampled output{seeded}; too few uncertain tokens to test their "
            "distribution."
        )
    caught = [f"{d.what} at {d.share:.1%} of positions" for d in test.detects if d.share and d.share < 1.0]
    power = f"; with 80 % power it catches {', or '.join(caught)}" if caught else ""
    return (
        f"Not judged token by token: sampled output{seeded}; the {test.tokens} tokens of the arm furthest "
        f"off are as likely under stock's own distribution as they should be (z = {test.z:.3g}, "
        f"p = {test.p_value:.2g}, level {test.level:g}{power})."
    )
