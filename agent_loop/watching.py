"""How a campaign shows itself: a live table, the event chain as JSON lines, a plain summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from tabulate import tabulate

from agent_loop.campaign import Loop
from agent_loop.controller.database import Database, Event
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.cost_model.trees import best_trees
from agent_loop.records import Candidate, Effect, Spent, Verdict
from harness.codec import canonical_json
from harness.storage import append_lines, cut_torn_tail

SHOWN = 12  # candidates of the table
CAUGHT = ("POLICY", "LOSSY", "LOSSY_DISTRIBUTION", "CHEAT", "BELOW_CEILING", "INCOMPLETE", "NEEDS_HUMAN")


def plain(text: str) -> str:
    """Text of an explorer without anything a terminal could obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def table(database: Database) -> Table:
    """Candidates with their newest verdict, best first, and what is left of the slots."""
    began: dict[str, Any] = next(
        (json.loads(event.body) for event in database.events() if event.kind == "began"), {}
    )
    slots = f"{len(database.slots())} of {began.get('slots', '?')} confirm slots used"
    title = f"{began.get('campaign', 'not begun')}: {slots}; {len(database.candidates())} candidates"
    found = Table(title=title, title_justify="left")
    for name in ("candidate", "stage", "verdict", "speedup over stock", "what is said"):
        found.add_column(name)
    rows = [(one, verdict) for one in database.candidates() if (verdict := database.last(one.id)) is not None]
    rows.sort(key=lambda row: -_point(row[1]))
    for one, verdict in rows[:SHOWN]:
        cells = (label(one), verdict.stage, verdict.outcome, figure(verdict.effect), verdict.detail[:70])
        found.add_row(*(escape(plain(cell)) for cell in cells))
    return found


def label(candidate: Candidate) -> str:
    """A candidate in a few words."""
    knobs = ", ".join(f"{name}={value}" for name, value in sorted(candidate.params.items()))
    return f"{candidate.name} ({knobs})"[:60]


def figure(effect: Effect | None) -> str:
    """A speedup with its interval; "-" where there is none."""
    return "-" if effect is None else f"{effect.point:.2f}x [{effect.low:.2f}, {effect.high:.2f}]"


class Watch:
    """A live table on a terminal; elsewhere one line for every new verdict."""

    def __init__(self) -> None:
        """Prepare the console."""
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._told = 0

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        if self._live is not None:
            self._live.stop()

    def show(self, database: Database) -> None:
        """Draw the table anew, or say what is new."""
        if self._live is not None:
            self._live.update(table(database), refresh=True)
            return
        verdicts = database.verdicts()
        for verdict in verdicts[self._told :]:
            one = database.candidate(verdict.candidate_id)
            name = "" if one is None else plain(label(one))
            text = f"{verdict.stage}: {verdict.outcome}: {name}: {plain(verdict.detail)}"
            self._console.print(text, markup=False, highlight=False)
        self._told = len(verdicts)

    def close(self, database: Database) -> None:
        """Print the closing table."""
        Console().print(table(database))


def standing(database: Database, asked: Spent | None) -> list[str]:
    """Where a campaign stands, in a few lines.

    Args:
        database: of the campaign.
        asked: what models have cost so far; None where none was asked.
    """
    events = database.events()
    ended = next((event for event in events if event.kind == "ended"), None)
    if ended is not None:
        state = f"ended at {ended.at}"
    elif not events:
        state = "not begun"
    elif events[-1].kind == "stopped":
        state = f"stopped: {json.loads(events[-1].body)['reason']}"
    else:
        state = f"not ended; the last event, {events[-1].kind}, was at {events[-1].at}"
    accepted = [v for v in database.verdicts() if v.stage == "confirm" and v.outcome == "ACCEPT"]
    best = max(accepted, key=_low, default=None)
    lines = [state, f"best confirmed: {figure(None if best is None else best.effect)}"]
    lines += [f"submitted: {len(database.submissions())}, measured for {measured_seconds(database):.0f} s"]
    if asked is not None:
        tokens = f"{asked.input_tokens} tokens in, {asked.output_tokens} out"
        lines.append(f"models: ${asked.dollars:.2f}, {asked.turns} turns, {tokens}")
    return lines


def measured_seconds(database: Database) -> float:
    """Wall time of all trials and confirmations so far."""
    tuning = sum(verdict.seconds for _, verdict in database.tuning())
    return tuning + sum(verdict.seconds for verdict in database.verdicts())


def ceiling_text(found: CeilingModel) -> str:
    """The cost model for people."""
    rows = [
        (
            gap.component,
            f"{gap.measured_s:.3f}",
            f"{gap.floor_s:.3f}",
            f"{gap.share:.0%}",
            f"{gap.confidence:.1f}",
            gap.basis,
        )
        for gap in found.gaps
    ]
    headers = ("component", "measured s", "floor s", "share of closable", "confidence", "basis")
    head = (
        f"{found.arm}: {found.seconds:.2f} s for {found.tokens} tokens in {found.steps} verify steps; at the "
        f"machine's peaks and with the drafts that survive {found.floor_s:.2f} s: at most "
        f"{found.speedup:.1f}x\nacceptance length {found.acceptance_length:.2f}, ceiling "
        f"{found.acceptance_ceiling:.2f}{_where(found)}\n"
    )
    return head + tabulate(rows, headers=headers, disable_numparse=True)


def _where(found: CeilingModel) -> str:
    """What the acceptance ceiling rests on."""
    told = ""
    if found.survival_ceiling is not None:
        told = f"; {found.survival_ceiling:.2f} with unlimited free positions of this drafter"
    trees = best_trees(found.trees)
    if trees is not None:
        longest, quickest = trees
        told += (
            f", {longest.acceptance_length:.2f} measured in trees of {longest.nodes} nodes; the quickest "
            f"tree here has {quickest.nodes}: {quickest.token_s * 1e3:.2f} ms a token"
        )
    return told


class EventTail:
    """Appends new events to the JSON lines file; started anew it goes on behind the last one."""

    def __init__(self, path: Path) -> None:
        """Read how far the file reaches."""
        self._path = path
        self._last = 0
        if path.is_file():
            cut_torn_tail(path)
            self._last = path.read_bytes().count(b"\n")

    def write(self, database: Database) -> list[Event]:
        """Append what is new, and give it."""
        events = database.events(self._last)
        if events:
            append_lines(self._path, [_line(event) for event in events])
            self._last = events[-1].seq
        return events


def summary(loop: Loop, database: Database, reused: bool, asked: Spent | None = None) -> dict[str, Any]:
    """What scripts read; what models and what measurements cost are never added up."""
    verdicts = database.verdicts()
    accepted = [v for v in verdicts if v.stage == "confirm" and v.outcome == "ACCEPT"]
    rejected: dict[str, int] = {}
    for one in database.candidates():
        verdict = database.last(one.id)
        if (
            verdict is not None
            and verdict.outcome not in ("PASSED", "ACCEPT")
            and one.explorer != "controller"
        ):
            rejected[verdict.outcome] = rejected.get(verdict.outcome, 0) + 1
    best = max((v for v in accepted if v.effect is not None), key=_low, default=None)
    effect = None if best is None else best.effect
    return {
        "campaign": loop.plan.name,
        "accepted": [_accepted(database, verdict) for verdict in accepted],
        "rejected": dict(sorted(rejected.items())),
        "confirm_slots_used": len(database.slots()),
        "best_speedup": None
        if effect is None
        else {"point": round(effect.point, 4), "low": round(effect.low, 4)},
        "reused_from_memory": reused,
        "tuned_stock": tuned_stock(database),
        "cost": {
            "models": None if asked is None else msgspec.to_builtins(asked),
            "measured_seconds": round(measured_seconds(database), 1),
        },
        "error_rates": {
            "campaign": loop.plan.rules.alpha,
            "confirmation": loop.plan.rules.level,
            "launch_blocks": loop.plan.rules.launch_blocks,
            "smallest_p_value": 2.0**-loop.plan.rules.launch_blocks,
        },
    }


def tuned_stock(database: Database) -> dict[str, Any] | None:
    """How stock was tuned and what that gave, on public rows; None where it was not tuned.

    `params` is None where no setting was faster than stock as released; `speedup` is of the last
    measurement beside candidates, on other rows than the search, and None before there was one.
    """
    bodies = {event.kind: json.loads(event.body) for event in database.events()}
    if "tuned" not in bodies:
        return None
    effect = bodies.get("tuned-measured", {}).get("effect")
    return {**bodies["tuned"], "speedup": None if effect is None else _interval(effect)}


def _interval(effect: Mapping[str, Any]) -> dict[str, Any]:
    return {name: effect[name] for name in ("point", "low", "high", "p_value")}


def caught(database: Database) -> list[tuple[Candidate, Verdict]]:
    """Candidates that were refused for what they are, not for being slow."""
    found = []
    for one in database.candidates():
        verdict = database.last(one.id)
        if verdict is not None and verdict.outcome in CAUGHT:
            found.append((one, verdict))
    return found


def _accepted(database: Database, verdict: Verdict) -> dict[str, Any]:
    candidate = database.candidate(verdict.candidate_id)
    effect = verdict.effect
    measured = database.verdict(verdict.candidate_id, "measure")
    over = None if measured is None else measured.over_tuned
    return {
        "id": verdict.candidate_id,
        "name": "" if candidate is None else candidate.name,
        "origin": None if candidate is None else candidate.origin,
        "params": {} if candidate is None else candidate.params,
        "speedup": None if effect is None else _interval(msgspec.to_builtins(effect)),
        "over_tuned_stock": None if over is None else _interval(msgspec.to_builtins(over)),  # on public rows
        "tokens_checked": verdict.tokens,
    }


def _line(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "body": json.loads(event.body),
        "hash": event.hash,
    }


def _point(verdict: Verdict) -> float:
    return verdict.effect.point if verdict.effect is not None else 0.0


def _low(verdict: Verdict) -> float:
    return verdict.effect.low if verdict.effect is not None else 0.0


def as_json(value: object) -> bytes:
    """Indented JSON of plain data."""
    return json.dumps(json.loads(canonical_json(value)), indent=2).encode() + b"\n"
