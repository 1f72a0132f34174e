"""Accepted candidates together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_loop.records import Candidate, Hypothesis, Verdict
from harness.plan import ArmSpec, Param

LARGEST = 4  # candidates in one stack


def changes(candidate: Candidate, stock: ArmSpec) -> Mapping[str, Param | None]:
    """Parameters that differ from stock's; None is one that was taken away."""
    names = sorted({*candidate.params, *stock.params})
    return {
        name: candidate.params.get(name)
        for name in names
        if candidate.params.get(name) != stock.params.get(name)
    }


def stacked(accepted: Sequence[Candidate], stock: ArmSpec) -> Candidate | None:
    """The candidates that change different knobs of stock's backend, as one; None where fewer than two do.

    Args:
        accepted: best first; one that touches a knob of a better one is left out.
        stock: the arm that all of them change.
    """
    params, parts = dict(stock.params), []
    touched: set[str] = set()
    for one in accepted:
        changed = changes(one, stock)
        if one.patch is not None or one.backend != stock.backend or touched & set(changed):
            continue
        for name, value in changed.items():
            if value is None:
                params.pop(name, None)
            else:
                params[name] = value
        touched |= set(changed)
        parts.append(one)
        if len(parts) == LARGEST:
            break
    if len(parts) < 2:
        return None
    return Candidate(
        name=" + ".join(one.name for one in parts)[:80],
        backend=stock.backend,
        params=params,
        hypothesis=Hypothesis(
            mechanism="stack", explanation="accepted candidates that change different knobs"
        ),
        origin="merge",
        explorer="controller",
        parents=tuple(one.id for one in parts),
    )


def added_up(together: Candidate, whole: Verdict, parts: Sequence[tuple[Candidate, Verdict]]) -> Verdict:
    """The verdict of "stack": whether a stack is faster than the best of its parts, in the same launches.

    Args:
        together: the stack.
        whole: what was measured of it.
        parts: what was measured of each of its parts.
    """
    apart = {one.name: v.effect.point for one, v in parts if v.effect is not None}
    point = 0.0 if whole.effect is None else whole.effect.point
    told = ", ".join(f"{name} {value:.3f}x" for name, value in apart.items()) or "no figure"
    return Verdict(
        candidate_id=together.id,
        stage="stack",
        outcome="PASSED" if point > max(apart.values(), default=0.0) else "NO_GAIN",
        detail=f"public rows: together {point:.3f}x; apart: {told}",
        effect=whole.effect,
        evidence=whole.evidence,
    )
