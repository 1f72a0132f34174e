"""Lint a set: faults of its file, then faults of its prompts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.errors import DataError
from sealed_evals.catalogue import RowLayout
from sealed_evals.formats import select, turns_of
from sealed_evals.lint_rules import RULES, Finding, LintRow
from sealed_evals.reader import Row, scan, unpack


def lint(data: bytes, layout: RowLayout, where: str) -> tuple[Finding, ...]:
    """Everything wrong or suspicious in a set, errors first, then by row.

    Args:
        data: content of the file, gzip or plain.
        layout: how its prompts are read.
        where: name of the file, for the error.

    Raises:
        DataError: the file cannot be unpacked.
    """
    found = scan(unpack(data, where))
    findings = [
        Finding(rule=fault.rule, severity="error", row=fault.number, message=fault.message)
        for fault in found.faults
    ]
    rows: list[LintRow] = []
    for row in found.rows:
        try:
            if select([row], layout, where):
                rows.append(LintRow(row.number, row.raw, turns_of(row, layout, where), _answers(row, layout)))
        except DataError as error:
            message = str(error).removeprefix(f"{where} row {row.number}: ")
            findings.append(Finding(rule="no-prompt", severity="error", row=row.number, message=message))
    for rule in RULES:
        findings += rule(rows)
    return tuple(sorted(findings, key=lambda finding: (finding.severity, finding.row or 0, finding.rule)))


def _answers(row: Row, layout: RowLayout) -> tuple[str, ...]:
    return tuple(text for field in layout.answers for text in _texts(row.value.get(field)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
