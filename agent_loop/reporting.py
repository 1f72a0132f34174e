"""The report of a campaign: summary.json for scripts, one self-contained page for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from agent_loop.campaign import Loop
from agent_loop.controller.database import Database
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.records import Effect
from agent_loop.watching import as_json, caught, figure, label, plain, summary, tuned_stock
from harness.storage import write_atomic

LEFT, WIDTH = 260.0, 400.0  # of the forest plot, in its own units
BAR = 520.0  # widest bar of the waterfall


def write_report(loop: Loop, database: Database, folder: Path, ceiling: CeilingModel | None) -> None:
    """Write summary.json and report.html."""
    reused = any(
        one.origin == "memory"
        and (v := database.verdict(one.id, "confirm")) is not None
        and v.outcome == "ACCEPT"
        for one in database.candidates()
    )
    write_atomic(folder / "summary.json", as_json(summary(loop, database, reused)))
    write_atomic(folder / "report.html", page(loop, database, ceiling))


def page(loop: Loop, database: Database, ceiling: CeilingModel | None) -> str:
    """The page; every text of an explorer is escaped."""
    rules = loop.plan.rules
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("agent_loop"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    verdicts = database.verdicts()
    confirmed = [
        (label(one), verdict.effect)
        for verdict in verdicts
        if verdict.stage == "confirm" and verdict.effect is not None
        if (one := database.candidate(verdict.candidate_id)) is not None
    ]
    scale = max([1.1, *(effect.high for _, effect in confirmed)])
    return environment.get_template("campaign.html.j2").render(
        name=loop.plan.name,
        candidates=len(database.candidates()),
        slots_used=len(database.slots()),
        slots=rules.confirm_slots,
        alpha=rules.alpha,
        level=rules.level,
        blocks=rules.launch_blocks,
        smallest=2.0**-rules.launch_blocks,
        ceiling=0.0 if ceiling is None else ceiling.speedup,
        gaps=[] if ceiling is None else _waterfall(ceiling),
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
        one=_place(1.0, scale),
        forest=[_forest(name, effect, scale) for name, effect in confirmed],
        caught=[
            {"label": plain(label(one)), "outcome": v.outcome, "stage": v.stage, "detail": plain(v.detail)}
            for one, v in caught(database)
        ],
        cards=[
            {
                "label": plain(label(one)),
                "explorer": plain(one.explorer),
                "origin": one.origin,
                "verdicts": [
                    {"stage": v.stage, "outcome": v.outcome, "detail": plain(v.detail)}
                    for v in verdicts
                    if v.candidate_id == one.id
                ],
            }
            for one in database.candidates()
        ],
    )


def _waterfall(ceiling: CeilingModel) -> list[dict[str, Any]]:
    largest = max(gap.measured_s for gap in ceiling.gaps) or 1.0
    return [
        {
            "component": gap.component,
            "measured": BAR * gap.measured_s / largest,
            "floor": BAR * min(gap.floor_s, gap.measured_s) / largest,
            "text": f"{gap.measured_s:.2f} s, {gap.share:.0%}"
            + (", below its floor" if gap.below_floor else ""),
        }
        for gap in ceiling.gaps
    ]


def _forest(name: str, effect: Effect, scale: float) -> dict[str, Any]:
    return {
        "label": plain(name)[:40],
        "low": _place(effect.low, scale),
        "point": _place(effect.point, scale),
        "high": _place(effect.high, scale),
        "text": figure(effect),
    }


def _place(value: float, scale: float) -> float:
    return LEFT + WIDTH * min(value, scale) / scale
