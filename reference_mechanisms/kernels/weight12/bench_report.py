"""The committed form of a benchmark: `summary.json` for scripts, `report.md` for people."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from reference_mechanisms.kernels.weight12.bench import bench, read_bandwidth
from reference_mechanisms.kernels.weight12.models import MODELS

SUMMARY, REPORT = "summary.json", "report.md"


def run(
    names: Sequence[str], tokens: Sequence[int], rounds: int, command: str, variants: Sequence[str] = ()
) -> dict[str, Any]:
    """Bench the models; the first one's step is that of the summary's top level.

    Args:
        names: of `MODELS`.
        tokens: rows of x.
        rounds: replays of each graph.
        command: that made the report.
        variants: other ways of weight12 to time beside it.
    """
    bandwidth = read_bandwidth()
    models: dict[str, Any] = {}
    for name in names:
        models[name] = summarised(bench(MODELS[name], tokens, rounds, variants), bandwidth)
        torch.cuda.empty_cache()
    first = models[names[0]]
    return {
        "machine": f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command,
        "model": names[0],
        "step_linears_ms": first["step_linears_ms"],
        "worst_shape_speedup": first["worst_shape_speedup"],
        "read_bandwidth_tb_s": bandwidth,
        "models": models,
        "other_bits": [f"{name}: {what}" for name in names for what in models[name]["other_bits"]],
    }


def summarised(found: Mapping[str, Any], bandwidth: float) -> dict[str, Any]:
    """What `bench` found, with the worst shape for each count of tokens and shares of the read bandwidth."""
    shapes = [
        {**row, "percent_of_read_bandwidth": 100 * row["tb_s"]["weight12"] / bandwidth}
        for row in found["shapes"]
    ]
    worst = {
        str(m): min(row["over_cublas"] for row in shapes if row["tokens"] == m)
        for m in dict.fromkeys(row["tokens"] for row in shapes)
    }
    return {**found, "shapes": shapes, "worst_shape_speedup": worst}


def write(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write both files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {SUMMARY: json.dumps(_rounded(summary), indent=1) + "\n", REPORT: markdown(summary)}
    for name, text in texts.items():
        temporary = folder / f".{name}.tmp"
        temporary.write_text(text)
        temporary.replace(folder / name)


def markdown(summary: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    parts = [
        "# Linears of a decoder's step: weight12 against cuBLAS and the bf16 twin",
        f"{summary['machine']}; {summary['date']}; `{summary['command']}`",
        "Cold weights; each implementation is one CUDA graph of the whole step, every product reads what the "
        "one before wrote; graphs replayed in turn, medians. Outputs of weight12 are bitwise those of the "
        f"twin. A kernel that only reads reaches {summary['read_bandwidth_tb_s']:.2f} TB/s here.",
    ]
    for name, found in summary["models"].items():
        step = found["step_linears_ms"]
        rows = [
            (m, cublas, step["twin"][m], step["weight12"][m], cublas / step["weight12"][m], worst)
            for (m, cublas), worst in zip(
                step["cublas"].items(), found["worst_shape_speedup"].values(), strict=True
            )
        ]
        headers = ("tokens", "cuBLAS ms", "twin ms", "weight12 ms", "over cuBLAS", "worst shape")
        parts += [f"## {name}", _table(rows, headers, (".0f", ".3f", ".3f", ".3f", ".2f", ".2f"))]
        ways = [way for way in step if way not in ("cublas", "twin")]
        if len(ways) > 1:
            times = [(m, *(step[way][m] for way in ways)) for m in step["weight12"]]
            parts += ["Milliseconds of weight12 in several ways:", _table(times, ("tokens", *ways), (".0f",))]
        if found.get("other_bits"):
            parts.append(f"**Not the bits of the twin**: {'; '.join(found['other_bits'])}.")
        rows_of_shapes = [
            (
                "x".join(map(str, row["shape"])),
                row["tokens"],
                *(row["us"][key] for key in ("cublas", "twin", "weight12")),
                row["over_cublas"],
                row["over_twin"],
                row["percent_of_read_bandwidth"],
            )
            for row in found["shapes"]
        ]
        headers_of_shapes = (
            "N x K",
            "tokens",
            "cuBLAS us",
            "twin us",
            "weight12 us",
            "over cuBLAS",
            "over twin",
            "% of read bandwidth",
        )
        formats = ("", ".0f", ".1f", ".1f", ".1f", ".2f", ".2f", ".0f")
        parts.append(_table(rows_of_shapes, headers_of_shapes, formats))
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str], formats: Sequence[str]) -> str:
    more = (".3f",) * (len(headers) - len(formats))
    return tabulate(rows, headers=headers, floatfmt=(*formats, *more), tablefmt="github")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value
