"""Reports over time: grouped by what may be compared, and never compared beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.codec import from_json
from harness.errors import DataError
from harness.report import numbers
from harness.report.html import environment
from harness.report.text import name, plain, shorten
from harness.results import ArmResult, Report
from harness.speculation import mechanism

TEMPLATE = "index.html.j2"
TITLE = 44  # characters of a target
Row = dict[str, str]


class Entry(NamedTuple):
    """A report and where it lies, relative to the index."""

    folder: str
    report: Report


class Group(NamedTuple):
    """Reports of one system: what they share, by what earlier groups differ, their arms, oldest first."""

    title: str
    shared: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]
    rows: tuple[Row, ...]


def read_entries(root: Path) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Every report below a folder, oldest first, and what could not be read."""
    entries, broken = [], []
    for path in sorted(root.rglob("report.json")):
        folder = path.parent.relative_to(root).as_posix()
        try:
            entries.append(Entry(folder, from_json(path.read_bytes(), Report, folder)))
        except DataError as error:
            broken.append(str(error))
    return tuple(sorted(entries, key=lambda entry: entry.report.created_at)), tuple(broken)


def system_of(report: Report) -> tuple[tuple[str, str], ...]:
    """What two reports must share before a number of one says anything about the other."""
    plan, deployment = report.job.plan, report.job.deployment
    target = report.models.get("target") or {}
    gpus = sorted(str(gpu.get("name")) for gpu in report.environment.get("gpus") or ())
    machine = (report.environment.get("cpu") or {}).get("model")
    sampling = plan.sampling
    return (
        ("target", str(target.get("weights_sha256") or target.get("source") or "unknown")),
        ("dtype", deployment.target.dtype),
        ("machine", ", ".join(gpus) or f"{machine}, no GPU"),
        ("division", report.division),
        ("sets", ", ".join(f"{s.name} {s.drawn} ({s.prompts_sha256[:8]})" for s in report.sets)),
        ("sampling", f"temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"),
        ("batch", str(plan.measure.batch)),
        ("baseline", f"{plan.baseline.kind} on {plan.baseline.backend}"),
    )


def incomparable(left: Report, right: Report) -> tuple[str, ...]:
    """Why two reports must not be compared; empty when they may."""
    pairs = zip(system_of(left), system_of(right), strict=True)
    reasons = [f"{what}: {mine} against {theirs}" for (what, mine), (_, theirs) in pairs if mine != theirs]
    invalid = [report for report in (left, right) if report.status != "valid"]
    return (*reasons, *(f"{one.name} of {one.created_at} is an invalid run" for one in invalid))


def groups(entries: Sequence[Entry]) -> tuple[Group, ...]:
    """Entries by what they may be compared with."""
    found: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(system_of(entry.report), []).append(entry)
    systems = list(found)
    return tuple(
        Group(
            _title(own[0].report, shared),
            shared,
            tuple(_refusal(number, earlier, shared) for number, earlier in enumerate(systems[:index], 1)),
            tuple(_rows(own)),
        )
        for index, (shared, own) in enumerate(found.items())
    )


def render_index(entries: Sequence[Entry], broken: Sequence[str]) -> str:
    """One self-contained page; equal reports give equal bytes."""
    return (
        environment()
        .get_template(TEMPLATE)
        .render(groups=groups(entries), broken=[plain(text) for text in broken], reports=len(entries))
    )


def _title(report: Report, shared: Sequence[tuple[str, str]]) -> str:
    """Target by its name, on its machine."""
    target = str((report.models.get("target") or {}).get("source") or "unknown target")
    return f"{shorten(target, TITLE)} on {name(dict(shared)['machine'])}"


def _refusal(number: int, earlier: Sequence[tuple[str, str]], own: Sequence[tuple[str, str]]) -> str:
    """By which facts an earlier group must not be compared with this one."""
    differing = [what for (what, theirs), (_, mine) in zip(earlier, own, strict=True) if theirs != mine]
    return f"group {number} ({', '.join(differing)})"


def _rows(entries: Sequence[Entry]) -> Iterator[Row]:
    """An arm a row; what changed is told against the last valid report that has the same arm."""
    last: dict[str, ArmResult] = {}
    for folder, report in entries:
        for arm in report.arms:
            if arm.name == report.job.plan.baseline.name:
                continue
            valid = report.status == "valid"
            key = f"{arm.name} {sorted(arm.params.items())}"
            yield {
                "folder": folder,
                "made": f"{report.created_at[:10]} {report.created_at[11:16]}",
                "commit": str(report.harness.get("git_commit") or "")[:10],
                "arm": name(arm.name),
                "mechanism": name(mechanism(report, arm.name)),
                "speedup": numbers.ratio(arm.speedup) if valid else "invalid run",
                "acceptance length": numbers.length(arm.acceptance_length),
                "stock verdict": numbers.stock_verdict(arm),
                "against the one before": _change(last.get(key), arm) if valid else "-",
            }
            if valid:
                last[key] = arm


def _change(before: ArmResult | None, now: ArmResult) -> str:
    """Said only where the two intervals do not meet."""
    if before is None or before.speedup is None or now.speedup is None:
        return "first"
    if now.speedup.low > before.speedup.high:
        return "faster"
    if now.speedup.high < before.speedup.low:
        return "slower"
    return "no difference shown"
