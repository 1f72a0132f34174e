"""The report of a campaign: summary.json for scripts, one self-contained page for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from agent_loop.campaign import Loop
from agent_loop.controller.database import Database
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.records import Candidate, Effect, Outcome, Spent, Verdict
from agent_loop.watching import as_json, caught, figure, label, measured_seconds, plain, summary, tuned_stock
from harness.storage import write_atomic

LEFT, WIDTH = 260.0, 400.0  # of the forest plot, in its own units
TICKS = 4  # of its axis, at most
BAR = 660.0  # widest bar of the waterfall
TEXT_ROOM = 0.6  # of it, up to which text stands behind a bar


def write_report(
    loop: Loop, database: Database, folder: Path, ceiling: CeilingModel | None, asked: Spent | None = None
) -> None:
    """Write summary.json and report.html.

    Args:
        loop: the campaign.
        database: of it.
        folder: where both go.
        ceiling: of its stock; None where the cost model could not tell.
        asked: what models have cost; None where none was asked.
    """
    reused = any(
        one.origin == "memory"
        and (v := database.verdict(one.id, "confirm")) is not None
        and v.outcome == "ACCEPT"
        for one in database.candidates()
    )
    write_atomic(folder / "summary.json", as_json(summary(loop, database, reused, asked)))
    write_atomic(folder / "report.html", page(loop, database, ceiling, asked))


def page(loop: Loop, database: Database, ceiling: CeilingModel | None, asked: Spent | None = None) -> str:
    """The page; every text of an explorer is escaped."""
    rules = loop.plan.rules
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("agent_loop"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    verdicts = database.verdicts()
    confirmed = [
        (label(one), verdict.outcome, verdict.effect)
        for verdict in verdicts
        if verdict.stage == "confirm" and verdict.effect is not None
        if (one := database.candidate(verdict.candidate_id)) is not None
    ]
    axis = _Axis(
        min([0.9, *(effect.low for _, _, effect in confirmed)]),
        max([1.1, *(effect.high for _, _, effect in confirmed)]),
    )
    return environment.get_template("campaign.html.j2").render(
        name=loop.plan.name,
        candidates=len(database.candidates()),
        slots_used=len(database.slots()),
        slots=rules.confirm_slots,
        alpha=rules.alpha,
        level=rules.level,
        blocks=rules.launch_blocks,
        smallest=2.0**-rules.launch_blocks,
        ceiling=ceiling,
        waterfall=[] if ceiling is None else _waterfall(ceiling, _best(verdicts)),
        cost=_cost(database, asked),
        tuned=tuned_stock(database),
        tuning=[
            {
                "params": plain(", ".join(f"{name}={value}" for name, value in sorted(one.params.items()))),
                "outcome": verdict.outcome,
                "speedup": figure(verdict.effect),
            }
            for one, verdict in database.tuning()
        ],
        over_tuned=[
            {"label": plain(label(one)), "speedup": figure(verdict.effect), "over": figure(over)}
            for verdict in verdicts
            if verdict.stage == "confirm" and verdict.outcome == "ACCEPT"
            if (one := database.candidate(verdict.candidate_id)) is not None
            if (measured := database.verdict(one.id, "measure")) is not None
            if (over := measured.over_tuned) is not None
        ],
        one=axis.place(1.0),
        ticks=[{"at": axis.place(value), "text": f"{value:g}x"} for value in axis.ticks()],
        forest=[_forest(name, outcome, effect, axis) for name, outcome, effect in confirmed],
        caught=[
            {"label": plain(label(one)), "outcome": v.outcome, "stage": v.stage, "detail": plain(v.detail)}
            for one, v in caught(database)
        ],
        cards=[
            {
                "label": plain(label(one)),
                "explorer": plain(one.explorer),
                "origin": one.origin,
                "believed": _believed(one),
                "patch": "" if one.patch is None else plain(f"{len(one.patch.splitlines())} lines of patch"),
                "verdicts": [_row(v) for v in verdicts if v.candidate_id == one.id],
            }
            for one in database.candidates()
        ],
    )


def _best(verdicts: Sequence[Verdict]) -> Effect | None:
    """What the best confirmed candidate gained."""
    found = [v.effect for v in verdicts if v.stage == "confirm" and v.outcome == "ACCEPT" and v.effect]
    return max(found, key=lambda effect: effect.low, default=None)


def _believed(candidate: Candidate) -> str:
    """What its explorer has said of it beforehand; untrusted text."""
    said = candidate.hypothesis
    parts = [said.mechanism]
    if said.gap:
        parts.append(f"against {said.gap}")
    if said.expected_speedup is not None:
        parts.append(f"{said.expected_speedup:.2f}x expected")
    if said.explanation:
        parts.append(said.explanation)
    if said.falsifier:
        parts.append(f"wrong if {said.falsifier}")
    return plain("; ".join(parts))


def _row(verdict: Verdict) -> dict[str, str]:
    """One line of a verdict card."""
    figures = [] if verdict.effect is None else [figure(verdict.effect)]
    if verdict.effect is not None and verdict.effect.p_value is not None:
        figures.append(f"p = {verdict.effect.p_value:.2g}, launches: {verdict.effect.blocks}")
    if verdict.alpha is not None:
        figures.append(f"level {verdict.alpha:.2g}")
    if verdict.acceptance_length is not None:
        figures.append(f"acceptance length {verdict.acceptance_length:.2f}")
    if verdict.tokens:
        figures.append(f"{verdict.mismatches} of {verdict.tokens} tokens not stock's")
    if verdict.near_ties:
        figures.append(f"{verdict.near_ties} near ties")
    return {
        "stage": verdict.stage,
        "outcome": verdict.outcome,
        "detail": plain(verdict.detail),
        "figures": "; ".join(figures),
    }


def _cost(database: Database, asked: Spent | None) -> str:
    """What the search and what the measurements have cost, apart."""
    measured = f"Measurements took {measured_seconds(database):.0f} s."
    if asked is None:
        return f"No model was asked. {measured}"
    tokens = f"{asked.input_tokens} tokens in and {asked.output_tokens} out"
    return f"Models cost ${asked.dollars:.2f} in {asked.turns} turns ({tokens}). {measured}"


def _waterfall(ceiling: CeilingModel, best: Effect | None) -> list[dict[str, Any]]:
    """From all of stock's time, gap by gap, down to what nobody can take away; then what is closed already.

    Gaps overlap (fewer steps save a part of every stage), so each takes its share of what could go away.
    """
    scale = BAR / ceiling.seconds
    closable = max(0.0, ceiling.seconds - ceiling.floor_s)
    rows = [_bar("stock", 0.0, ceiling.seconds * scale, f"{ceiling.seconds:.2f} s", "whole")]
    left = ceiling.seconds
    for gap in ceiling.gaps:
        goes = gap.share * closable
        left -= goes
        text = f"{goes:.2f} s, {goes / ceiling.seconds:.0%}; confidence {gap.confidence:.1f}"
        if gap.below_floor:
            text = "measured below its floor: a measurement or a peak is wrong"
        rows.append(_bar(gap.component, left * scale, goes * scale, text, "gap"))
    told = f"{ceiling.floor_s:.2f} s: at most {ceiling.speedup:.1f}x"
    rows.append(_bar("ceiling", 0.0, min(1.0, 1.0 / ceiling.speedup) * BAR, told, "floor"))
    if best is not None:
        told = f"{best.point:.2f}x over stock, confirmed"
        rows.append(_bar("accepted", 0.0, min(1.0, 1.0 / best.point) * BAR, told, "closed"))
    return rows


def _bar(name: str, start: float, width: float, text: str, kind: str) -> dict[str, Any]:
    width = max(0.0, width)
    # Text stands behind the bar, or in front of it where there is no room.
    behind = start + width + 6.0 <= BAR * TEXT_ROOM
    at = start + width + 6.0 if behind else start - 6.0
    if not behind and start < BAR * (1.0 - TEXT_ROOM):
        at, kind = start + 6.0, f"{kind} inside"
    anchor = "start" if behind or "inside" in kind else "end"
    return {"name": name, "x": start, "width": width, "text": text, "kind": kind, "at": at, "anchor": anchor}


class _Axis(NamedTuple):
    """Of the forest plot, from the least speedup on it to the greatest."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where a speedup stands."""
        return LEFT + WIDTH * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round speedups on it."""
        long = self.high - self.low
        steps = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)
        step = next((one for one in steps if long / one <= TICKS), long / TICKS)
        first = math.ceil(self.low / step)
        return [round(step * n, 6) for n in range(first, int(self.high / step) + 1)]


def _forest(name: str, outcome: Outcome, effect: Effect, axis: _Axis) -> dict[str, Any]:
    return {
        "label": plain(name)[:40],
        "kind": "good" if outcome == "ACCEPT" else "refused",
        "low": axis.place(effect.low),
        "point": axis.place(effect.point),
        "high": axis.place(effect.high),
        "text": figure(effect),
    }
