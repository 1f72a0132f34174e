"""Steps of the reference engine beside vLLM's: the engines of a comparison, its table and its file."""

from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from reference_mechanisms.engine.beside_vllm.worker import Asked
from reference_mechanisms.engine.fitting import WeightFormat
from reference_mechanisms.jsonfile import write_json
from reference_mechanisms.weight12.plugin.step_times.engine_arguments import ACCEPTANCE_LENGTH, DRAFTS
from reference_mechanisms.weight12.plugin.step_times.report import SUMMARY, read_summary
from reference_mechanisms.weight12.plugin.step_times.rounds import (
    LONG,
    PROMPT,
    SHORT,
    Found,
    Name,
    worker_command,
)
from reference_mechanisms.weight12.plugin.step_times.steps import AR, DFLASH, PLAIN, Sample, spread

SHAPE = "Qwen3-8B"  # vLLM's is `step_times/shapes/qwen3-8b`
STOCK = "stock"
OWN: Mapping[str, WeightFormat] = {"own-weight12": "weight12", "own-bf16": "bf16"}
KEYS = {AR: "ar_step_ms", DFLASH: f"k{DRAFTS}_step_ms"}
NAMES = {  # in a summary, by mode and kind
    (AR, PLAIN): STOCK,
    (AR, "own-weight12"): "weight12",
    (AR, "own-bf16"): "bf16",
    (DFLASH, PLAIN): STOCK,
    (DFLASH, "own-weight12"): "same_drafts",
    (DFLASH, "own-bf16"): "bf16",
}
RESULT, BESIDE = "beside-vllm.json", "beside_vllm"
WORKER = "reference_mechanisms.engine.beside_vllm.worker"


def command(kind: str, mode: str, batches: Sequence[int]) -> list[str]:
    """The command of an engine's process: vLLM's, or the reference engine's."""
    if kind == PLAIN:
        return worker_command(kind, mode, batches)
    drafts = DRAFTS if mode == DFLASH else 0
    asked = Asked(
        shape=SHAPE,
        weights=OWN[kind],
        drafts=drafts,
        length=ACCEPTANCE_LENGTH,
        positions=PROMPT + LONG,
    )
    return [sys.executable, "-u", "-m", WORKER, msgspec.json.encode(asked).decode()]


def engines(weights: Sequence[str], modes: Sequence[str]) -> tuple[Name, ...]:
    """VLLM and the reference engine in these formats, each in these modes."""
    return tuple((kind, mode) for mode in modes for kind in (PLAIN, *(f"own-{name}" for name in weights)))


def table(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each mode and engine: medians over rounds, and times over vLLM's paired by round."""
    rows = []
    for mode, kind in dict.fromkeys((one.mode, one.kind) for one in samples):
        own = {one.round: one for one in samples if (one.mode, one.kind) == (mode, kind)}
        stock = {one.round: one for one in samples if (one.mode, one.kind) == (mode, PLAIN)}
        both = sorted(own.keys() & stock.keys())
        row: dict[str, Any] = {
            "mode": mode,
            "engine": kind,
            "step_ms": spread([one.step_ms for one in own.values()]),
            "tokens_per_second": statistics.median(LONG / one.long_s for one in own.values()),
            "tokens_per_step": statistics.fmean(one.tokens_per_step for one in own.values()),
        }
        if both and kind != PLAIN:
            row["step_speedup"] = spread([stock[n].step_ms / own[n].step_ms for n in both])
            row["request_speedup"] = spread([stock[n].long_s / own[n].long_s for n in both])
        rows.append(row)
    return rows


def write(folder: Path, found: Found, told: str) -> None:
    """Write `beside-vllm.json`, and its medians into `summary.json`; each whole or not.

    Args:
        folder: of the results of `engine bench`, or a new one.
        found: what there is so far.
        told: the command.

    Raises:
        CallError: a `summary.json` that is there is no JSON object.
    """
    rows = table(found.samples)
    machine = next(iter(found.facts.values()))
    write_json(
        folder / RESULT,
        {
            "machine": f"{machine.device}, torch {machine.torch}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": told,
            "division": "system",
            "model": f"the shape of {SHAPE}, dummy weights",
            "drafter": f"the shape of its DFlash, {DRAFTS} drafts, {ACCEPTANCE_LENGTH} tokens a step imposed",
            "prompt_tokens": PROMPT,
            "long_tokens": LONG,
            "short_tokens": SHORT,
            "rounds": found.rounds,
            "table": rows,
            "engines": found.facts,
            "faults": found.faults,
            "gpu": found.gpu,
            "samples": found.samples,
        },
    )
    summary = read_summary(folder) or {"division": "system"}
    for row in rows:
        times = summary.setdefault(KEYS[row["mode"]], {})
        times[NAMES[row["mode"], row["engine"]]] = round(row["step_ms"]["median"], 4)
    write_json(folder / SUMMARY, {**summary, BESIDE: RESULT})


def text(found: Found) -> str:
    """The table for people, and what was left out."""
    headers = ("mode", "engine", "step ms", "tokens/s", "tokens a step", "step", "request", "rounds")
    lines = [
        (
            row["mode"],
            row["engine"],
            f"{row['step_ms']['median']:.3f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['tokens_per_step']:.2f}",
            *(
                f"{row[key]['median']:.2f}x" if key in row else ""
                for key in ("step_speedup", "request_speedup")
            ),
            row["step_ms"]["rounds"],
        )
        for row in table(found.samples)
    ]
    shown = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
    return "\n".join([shown, *(f"left out: {name}: {reason}" for name, reason in found.faults.items())])
