"""In what the arms of a run differ: parameters, and what backends and servers told of themselves.

Two arms are compared fairly where they differ in their mechanism alone; this table shows the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.plan import ArmSpec
from harness.report import text
from harness.report.text import flat, told
from harness.results import Report
from harness.speculation import mechanism, told_of

Rows = list[dict[str, str]]

TITLE = "Differences between arms"
NOTE = (
    "Every parameter, and every fact that backends and servers told, in which the arms are not alike. Rows "
    "that are no part of the mechanism come first: there the comparison may be unfair."
)
ABSENT = "-"
# Readings of the run itself, and what has a table of its own.
NO_SETTING = frozenset(
    {"counters", "strangers", "drafter_findings", "client_overhead", "tree_figures", "url", "probes"}
)
RUNNING = frozenset({"concurrency", "url", "environment", "graphs"})  # parameters of how an arm is run
_OF_MECHANISM = re.compile(
    r"speculative|^(mechanism|parameter|drafters|checkpoints?|checkpoint_sha256|steps)\b"
)


class _Facts(NamedTuple):
    """One arm: name of the fact -> value in words."""

    arm: str
    of: Mapping[str, str]


def differences(report: Report) -> Rows:
    """A row for each fact in which the arms differ, a column for each arm; empty where none does."""
    found = _facts(report)
    names = list(dict.fromkeys(name for facts in found for name in facts.of))
    rows = [
        {
            "what": name,
            "of the mechanism": "yes" if _OF_MECHANISM.search(name) else "no",
            **{text.name(facts.arm): facts.of.get(name, ABSENT) for facts in found},
        }
        for name in names
        if len({facts.of.get(name, ABSENT) for facts in found}) > 1
    ]
    return sorted(rows, key=lambda row: row["of the mechanism"])


def alike(report: Report) -> int:
    """How many facts are the same for every arm."""
    found = _facts(report)
    names = {name for facts in found for name in facts.of}
    return sum(len({facts.of.get(name, ABSENT) for facts in found}) == 1 for name in names)


def summary(report: Report) -> str:
    """One sentence on how many facts differ."""
    rows = differences(report)
    other = sum(row["of the mechanism"] == "no" for row in rows)
    return (
        f"{len(rows)} facts differ between the arms, {other} of them outside of the mechanism; "
        f"{alike(report)} are the same for all."
    )


def _facts(report: Report) -> list[_Facts]:
    names = [arm.name for arm in report.job.plan.arms]
    return [_Facts(arm.name, dict(_of_arm(report, arm, names))) for arm in report.job.plan.arms]


def _of_arm(report: Report, arm: ArmSpec, names: list[str]) -> Iterator[tuple[str, str]]:
    yield "mechanism", text.name(mechanism(report, arm.name))
    yield "backend", text.plain(arm.backend)
    for name, value in arm.params.items():
        if name == "arguments":
            yield from _arguments(str(value))
        else:
            yield f"{'run' if name in RUNNING else 'parameter'} {text.name(name)}", told(value)
    own = {key: value for key, value in told_of(report, arm).items() if key not in NO_SETTING}
    for key, value in own.items():
        if isinstance(value, Mapping) and value and set(value) <= set(names):  # told for each arm
            if arm.name in value:
                yield from _named(key, value[arm.name])
        elif key != "arms":
            yield from _named(key, value)


def _named(key: str, value: Any) -> Iterator[tuple[str, str]]:
    yield from flat(value, text.name(str(key)))


def _arguments(words: str) -> Iterator[tuple[str, str]]:
    """Each option of a server's command line with its value."""
    try:
        parts = shlex.split(words)
    except ValueError:
        yield "arguments", text.plain(words)
        return
    name: str | None = None
    for part in parts:
        if part.startswith("--"):
            name, equals, value = part.partition("=")
            yield f"argument {text.name(name)}", text.plain(value) if equals else "given"
        elif name is not None:
            yield f"argument {text.name(name)}", text.plain(part)
