"""The report as Markdown: every number, for terminals, diffs and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from harness.report import (
    differences,
    drafting,
    lossless_tables,
    run_tables,
    sampled,
    speed_tables,
    tables,
)
from harness.report.text import plain
from harness.results import Losslessness, Report

# Everything that could start emphasis, a span, a link, a cell, HTML, a formula or a mention.
_SPECIAL = re.compile(r"[\\`*\[<|~$@&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|xmpp)(?=:)|\bwww(?=\.)")
_BLOCK = re.compile(r"^([#+=>-]|\d+(?=[.)](?:\s|$)))")


def render_markdown(report: Report) -> str:
    """The whole report."""
    parts = [
        f"# {escape(tables.title(report))}",
        _banner(report),
        paragraph(tables.statement(report)),
        f"Division: {report.division}. Plan hash: {code(report.plan.hash)}. "
        f"Made: {escape(report.created_at)}.",
        "## Arms\n\n" + _table(tables.headline(report)),
        _speedups(report),
        "## Losslessness\n\n" + _losslessness(report, report.losslessness),
        "## Per category\n\n" + _table(speed_tables.categories(report), _no_speed(report)),
        *_by_set(report),
        "## Acceptance\n\n" + _noted(drafting.acceptance(report), drafting.ACCEPTANCE_NOTE),
        *_drafting(report),
        "## Latency\n\n" + _table(speed_tables.latency(report), _no_speed(report)),
        *_loads(report),
        "## Audits\n\n" + _table(run_tables.audits(report)),
        "## Warnings\n\n" + _bullets(report.warnings),
        "## Evaluation sets\n\n" + _table(run_tables.sets(report)),
        "## How it was run\n\n" + _how(report),
        f"## {differences.TITLE}\n\n" + _differences(report),
        "## Environment\n\n" + _table(run_tables.environment(report)),
        "## Telemetry\n\n" + _table(run_tables.telemetry(report)),
        _table(run_tables.telemetry_by_block(report), ""),
        run_tables.TELEMETRY_NOTE,
        "## Files\n\n" + _table(run_tables.files(report)),
        "## Check it yourself\n\n"
        "`specpilot-harness check REPORT_DIR` forces every stored token through stock again and derives\n"
        "every number above from `responses.jsonl` again; `specpilot-harness explain REPORT_DIR PROMPT`\n"
        "shows where a response leaves stock.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Keep foreign text what it is: no cell, line, emphasis, link, HTML or formula comes out of it."""
    spared = _SPECIAL.sub(r"\\\g<0>", plain(text))
    return _LINK.sub(lambda found: f"{found[0]}\\", spared)


def paragraph(text: str) -> str:
    """Escaped text that also starts no heading, list or quotation where it begins a line."""
    return _BLOCK.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", escape(text))


def code(text: str) -> str:
    """A code span that its own backticks cannot end. Not for a table: a pipe would end the cell."""
    shown = plain(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}" if "`" in shown else f"{fence}{shown}{fence}"


def _banner(report: Report) -> str:
    if not tables.valid(report):
        reasons = "\n".join(f"> - {paragraph(reason)}" for reason in report.reasons)
        return f"> **INVALID RUN.** No speedup is given, because:\n>\n{reasons}"
    if report.label == "smoke":
        return f"> **Smoke run**: it stands behind no claim. {tables.sizes(report)}."
    return ""


def _loads(report: Report) -> list[str]:
    """Only for arms that servers run."""
    rows = speed_tables.loads(report)
    return [f"## Under load\n\n{_table(rows, '')}\n\n{speed_tables.LOAD_NOTE}"] if rows else []


def _by_set(report: Report) -> list[str]:
    """Only for runs of several sets."""
    rows = speed_tables.by_set(report)
    return [f"### Per set\n\n{_table(rows)}"] if rows else []


def _differences(report: Report) -> str:
    parts = (
        escape(differences.summary(report)),
        _table(differences.differences(report), ""),
        differences.NOTE,
    )
    return "\n\n".join(part for part in parts if part)


def _drafting(report: Report) -> list[str]:
    """Only for arms that draft."""
    parts = []
    for title, rows, note in (
        (drafting.BY_SET, drafting.by_set(report), drafting.BY_SET_NOTE),
        (drafting.DETECTIONS, drafting.detections(report), drafting.DETECTIONS_NOTE),
    ):
        if rows:
            parts.append(f"### {title}\n\n{_table(rows)}\n\n{note}")
    return parts


def _no_speed(report: Report) -> str:
    return "None." if tables.valid(report) else tables.NO_SPEED


def _speedups(report: Report) -> str:
    if not tables.valid(report):
        return ""
    return _noted(speed_tables.speedups(report), escape(speed_tables.speedup_note(report)))


def _losslessness(report: Report, found: Losslessness | None) -> str:
    if found is None:
        return "Not judged."
    parts = [
        _table(lossless_tables.losslessness(found)),
        _table(lossless_tables.losslessness_by_arm(report), ""),
    ]
    drawn = sampled.rows(report)
    if drawn:
        parts.append(f"{sampled.TITLE}:\n\n{_table(drawn)}\n\n{sampled.NOTE}")
    if found.stop_faults:
        shown = lossless_tables.shown_of(len(found.stop_faults))
        parts.append(
            f"Stops that the ids do not explain ({shown}):\n\n" + _table(lossless_tables.stop_faults(found))
        )
    if found.divergences:
        shown = lossless_tables.shown_of(len(found.divergences))
        parts.append(f"First divergences ({shown}):\n\n" + _table(lossless_tables.divergences(found)))
    return "\n\n".join(part for part in parts if part)


def _how(report: Report) -> str:
    parts = [
        f"Command: {code(run_tables.command(report))}",
        _table(run_tables.arms_as_run(report)),
        _table(run_tables.how(report)),
    ]
    return "\n\n".join(parts)


def _noted(rows: Sequence[Mapping[str, object]], note: str) -> str:
    return f"{_table(rows)}\n\n{note}" if rows else "None."


def _table(rows: Sequence[Mapping[str, object]], empty: str = "None.") -> str:
    cells = [{escape(key): escape(str(value)) for key, value in row.items()} for row in rows]
    return tabulate(cells, headers="keys", tablefmt="github", disable_numparse=True) if cells else empty


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {paragraph(line)}" for line in lines) or "None."
