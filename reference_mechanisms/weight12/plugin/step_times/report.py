"""The files of a run: `vllm-step.json`, and its medians in the `summary.json` of `weight12 bench`."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from reference_mechanisms.jsonfile import write_json
from reference_mechanisms.weight12.errors import CallError
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import ACCEPTANCE_LENGTH, DRAFTS
from reference_mechanisms.weight12.plugin.step_times.rounds import LONG, PROMPT, SHORT, Found
from reference_mechanisms.weight12.plugin.step_times.steps import DFLASH, KINDS, step_ms, table

RESULT, SUMMARY = "vllm-step.json", "summary.json"
KEY = "vllm_step_ms"


def write(folder: Path, found: Found, command: str) -> None:
    """Write `vllm-step.json`, and `vllm_step_ms` into a `summary.json` that is there; each whole or not.

    Raises:
        CallError: `summary.json` is no JSON object.
    """
    summary = read_summary(folder)
    rows = table(found.samples)
    times = step_ms(rows)
    machine = next(iter(found.facts.values()))
    result = {
        "machine": f"{machine.device}, torch {machine.torch}, vLLM {machine.vllm}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "model": "the shape of Qwen3-8B, dummy weights",
        "prompt_tokens": PROMPT,
        "long_tokens": LONG,
        "short_tokens": SHORT,
        KEY: times,
        "table": rows,
        "rounds": found.rounds,
        "engines": found.facts,
        "faults": found.faults,
        "gpu": found.gpu,
        "samples": found.samples,
    }
    if any(row["mode"] == DFLASH for row in rows):
        result["drafter"] = {
            "model": "the shape of a DFlash drafter of Qwen3-8B, dummy weights",
            "drafts": DRAFTS,
            "synthetic_acceptance_length": ACCEPTANCE_LENGTH,
        }
    write_json(folder / RESULT, result)
    if summary is not None and times:
        write_json(folder / SUMMARY, {**summary, KEY: times})


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The `summary.json` of a folder; None if there is none.

    Raises:
        CallError: it is no JSON object.
    """
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CallError(f"--out {folder}: {SUMMARY} cannot be read ({error}); mend or remove it") from None
    if not isinstance(found, dict):
        raise CallError(f"--out {folder}: {SUMMARY} is no JSON object; mend or remove it")
    return found


def text(found: Found) -> str:
    """The table for people, and what was left out."""
    headers = ("mode", "batch", *(f"{kind} ms" for kind in KINDS), "speedup", "least", "greatest", "rounds")
    lines = tabulate(
        [_line(row) for row in table(found.samples)],
        headers=headers,
        floatfmt=("", "", ".3f", ".3f", ".3f", ".3f", ".3f", ""),
        tablefmt="github",
    )
    return "\n".join([lines, *(f"left out: {name}: {reason}" for name, reason in found.faults.items())])


def _line(row: Mapping[str, Any]) -> Sequence[Any]:
    steps = [row[kind]["step_ms"]["median"] if kind in row else None for kind in KINDS]
    ratio = row.get("speedup", {})
    figures = [ratio.get(key) for key in ("median", "min", "max", "rounds")]
    return (row["mode"], row["batch"], *steps, *figures)
