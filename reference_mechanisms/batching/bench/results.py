"""What a bench found as files: `summary.json` for scripts, a raw file beside it, and tables for people."""

from __future__ import annotations

import datetime
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from reference_mechanisms.batching.bench import stock
from reference_mechanisms.batching.bench.beside import OWN, RELEASED, Found, Timed, tuned
from reference_mechanisms.batching.bench.earlier import earlier_served, read_earlier, with_earlier
from reference_mechanisms.batching.bench.lines import Served
from reference_mechanisms.batching.bench.resident import Exact
from reference_mechanisms.batching.bench.steps import step_rows, step_table, step_times
from reference_mechanisms.batching.traces.format import Recording, Trace, acceptance_rates
from reference_mechanisms.jsonfile import write_json
from reference_mechanisms.weight12.plugin.step_times.report import SUMMARY, read_summary
from reference_mechanisms.weight12.plugin.step_times.steps import spread

BESIDE, MECHANISMS = "beside-vllm.json", "mechanisms.json"
BESIDE_TABLE, MECHANISMS_TABLE = "beside-vllm.md", "mechanisms.md"


class About(NamedTuple):
    """What a bench was of."""

    command: str
    shape: str
    weights: str
    traces: Path
    recording: Recording
    seed: int


def write_beside(folder: Path, about: About, traces: Sequence[Trace], found: Found) -> str:
    """Write what there is of engines beside each other; each file whole or not.

    Args:
        folder: of the results; what an earlier run of the same work found of other loads stays.
        about: what was timed.
        traces: of the request set.
        found: so far.

    Returns:
        The table.

    Raises:
        CallError: a `summary.json` that is there is no JSON object.
    """
    machine = next((f"{one.device}, torch {one.torch}" for one in found.facts.values()), None)
    head = _head(about, machine)
    found = with_earlier(found, read_earlier(folder / BESIDE, head))
    rows = beside_rows(found)
    drafts = sorted({stock.RELEASED, *found.best.values()} - {0})
    write_json(
        folder / BESIDE,
        {
            **head,
            "acceptance_rates": {str(one): acceptance_rates(traces, one) for one in drafts},
            "rounds": found.rounds,
            "table": rows,
            "tried": [{"engine": one.engine, **_told(one.served)} for one in found.tried],
            "best_drafts": {str(load): one for load, one in found.best.items()},
            "engines": found.facts,
            "faults": found.faults,
            "gpu": found.gpu,
            "timed": [{"engine": one.engine, "round": one.round, **_told(one.served)} for one in found.timed],
        },
    )
    if rows:
        system = {str(row["concurrency"]): _summed(row, found.best) for row in rows if row["engine"] == OWN}
        for row in rows:
            told = system.get(str(row["concurrency"]), {})
            speed = round(row["tokens_per_second"]["median"], 2)
            if row["engine"] == RELEASED:
                told["stock_released"] = speed
            elif row["engine"] != OWN:
                told["stock_tuned"] = speed
        _merge(folder, {"system": system, "beside_vllm": BESIDE})
    text = _beside_text(rows, found)
    (folder / BESIDE_TABLE).write_text(f"{_title(about, machine)}\n\n{text}\n")
    return text


def beside_rows(found: Found) -> list[dict[str, Any]]:
    """A row for each load and engine: medians over rounds, and ours over it, paired by round."""
    rows = []
    for load in sorted({one.served.concurrency for one in found.timed}):
        mine = _by_round(found.timed, load, OWN)
        for name in (OWN, RELEASED, tuned(found.best[load])):
            its = _by_round(found.timed, load, name)
            both = sorted(mine.keys() & its.keys())
            if not its:
                continue
            row: dict[str, Any] = {
                "concurrency": load,
                "engine": name,
                "requests": next(iter(its.values())).requests,
                "tokens_per_second": spread(one.tokens_per_second for one in its.values()),
                "acceptance_length": _mean(its.values()),
            }
            if both and name != OWN:
                row["ours_over_it"] = spread(
                    mine[n].tokens_per_second / its[n].tokens_per_second for n in both
                )
            rows.append(row)
    return rows


def write_steps(folder: Path, about: About, found: Found) -> str:
    """Write the times of steps, so far: a raw file, a table, and those of the smallest load for scripts.

    Args:
        folder: of the results.
        about: what was timed.
        found: by `beside.Bench.step_times`.

    Returns:
        The table.

    Raises:
        CallError: a `summary.json` that is there is no JSON object.
        StepError: two request sets give no time of a step.
    """
    rows = step_rows(step_times(found.timed))
    machine = next((f"{one.device}, torch {one.torch}" for one in found.facts.values()), None)
    name = f"steps-{about.shape}"
    write_json(
        folder / f"{name}.json",
        {
            **_head(about, machine),
            "rounds": found.rounds,
            "table": rows,
            "engines": found.facts,
            "faults": found.faults,
            "gpu": found.gpu,
            "timed": [{"engine": one.engine, "round": one.round, **_told(one.served)} for one in found.timed],
        },
    )
    if rows:
        key = f"{about.shape.split('-')[0]}_step_ms"
        by_load: dict[str, dict[str, float]] = {}
        for row in rows:
            engine = about.weights if row["engine"] == OWN else "stock"
            by_load.setdefault(str(row["concurrency"]), {})[engine] = round(row["step_ms"]["median"], 4)
        least = str(min(row["concurrency"] for row in rows))
        _merge(folder, {key: by_load[least], f"{key}_by_load": by_load, "steps": f"{name}.json"})
    text = step_table(rows)
    (folder / f"{name}.md").write_text(f"{_title(about, machine)}\n\n{text}\n")
    return text


def write_mechanisms(
    folder: Path, about: About, machine: str, timed: Sequence[Served], exact: Exact | None
) -> str:
    """Write what each variant of ours gave at each load, so far.

    Args:
        folder: of the results; what an earlier run of the same work timed of others stays.
        about: what was timed.
        machine: that it was timed on.
        timed: in order; each variant as often as it was timed.
        exact: drafts held against none; None: not done yet.

    Returns:
        The table.

    Raises:
        CallError: a `summary.json` that is there is no JSON object.
    """
    head = _head(about, machine)
    earlier = read_earlier(folder / MECHANISMS, head)
    timed = [*earlier_served(earlier, timed), *timed]
    rows = mechanism_rows(timed)
    kept = earlier.get("exact") if exact is None else exact._asdict()
    write_json(
        folder / MECHANISMS,
        {**head, "table": rows, "exact": kept, "timed": [_told(one) for one in timed]},
    )
    told: dict[str, Any] = {"mechanisms": MECHANISMS}
    if exact is not None:
        told |= {"exact_tokens": exact.tokens, "logit_mismatches": exact.mismatches}
    _merge(folder, told)
    lines = [
        (
            row["concurrency"],
            row["variant"],
            f"{row['tokens_per_second']['median']:.1f}",
            f"{row['of_everything']:.3f}" if row["of_everything"] is not None else "-",
            "-" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
            row["steps"],
        )
        for row in rows
    ]
    headers = ("requests at a time", "variant", "tokens/s", "of everything", "tokens a verification", "steps")
    text = tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)
    (folder / MECHANISMS_TABLE).write_text(f"{_title(about, machine)}\n\n{text}\n")
    return text


def mechanism_rows(timed: Sequence[Served]) -> list[dict[str, Any]]:
    """A row for each load and variant, fastest first."""
    groups: dict[tuple[int, str], list[Served]] = {}
    for one in timed:
        groups.setdefault((one.concurrency, one.variant), []).append(one)
    speeds = {key: statistics.median(one.tokens_per_second for one in group) for key, group in groups.items()}
    rows = [
        {
            "concurrency": load,
            "variant": variant,
            "requests": group[0].requests,
            "tokens_per_second": spread(one.tokens_per_second for one in group),
            "of_everything": _over(speeds[load, variant], speeds.get((load, "everything"))),
            "acceptance_length": _mean(group),
            "steps": group[0].steps,
        }
        for (load, variant), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (row["concurrency"], -speeds[row["concurrency"], row["variant"]]))


def _over(speed: float, whole: float | None) -> float | None:
    return None if whole is None else speed / whole


def _by_round(timed: Sequence[Timed], load: int, name: str) -> dict[int, Served]:
    return {one.round: one.served for one in timed if (one.served.concurrency, one.engine) == (load, name)}


def _mean(served: Any) -> float | None:
    lengths = [one.acceptance_length for one in served]
    known = [one for one in lengths if one is not None]
    return statistics.fmean(known) if known else None


def _summed(row: Mapping[str, Any], best: Mapping[int, int]) -> dict[str, Any]:
    return {
        "candidate": round(row["tokens_per_second"]["median"], 2),
        "stock_tuned_k": best[row["concurrency"]],
    }


def _told(served: Served) -> dict[str, Any]:
    return {name: getattr(served, name) for name in served.__struct_fields__} | {
        "tokens_per_second": served.tokens_per_second,
        "acceptance_length": served.acceptance_length,
    }


def _head(about: About, machine: str | None) -> dict[str, Any]:
    return {
        "division": "system",
        "machine": machine,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": about.command,
        "shape": about.shape,
        "weights": f"dummy; ours in {about.weights}",
        "acceptance": about.recording.source,
        "synthetic": about.recording.synthetic,
        "traces_sha256": hashlib.sha256(about.traces.read_bytes()).hexdigest(),
        "prompts_seed": about.seed,
    }


def _title(about: About, machine: str | None) -> str:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{about.shape}, dummy weights, ours in {about.weights}; {machine or 'no engine came up'}, {today}.\n"
        f'Division "system": {about.recording.source}.\n`{about.command}`'
    )


def _merge(folder: Path, told: Mapping[str, Any]) -> None:
    summary = read_summary(folder) or {"division": "system"}
    for key, value in told.items():
        before = summary.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            summary[key] = {**before, **value}
        else:
            summary[key] = value
    write_json(folder / SUMMARY, summary)


def _beside_text(rows: Sequence[Mapping[str, Any]], found: Found) -> str:
    headers = ("requests at a time", "engine", "tokens/s", "tokens a verification", "ours over it", "rounds")
    lines = [
        (
            row["concurrency"],
            row["engine"],
            f"{row['tokens_per_second']['median']:.1f}",
            "-" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
            f"{row['ours_over_it']['median']:.2f}x" if "ours_over_it" in row else "",
            row["tokens_per_second"]["rounds"],
        )
        for row in rows
    ]
    shown = [tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)]
    if found.tried:
        tried = [
            (one.served.concurrency, one.engine, f"{one.served.tokens_per_second:.1f}") for one in found.tried
        ]
        names = ("requests at a time", "stock tried", "tokens/s")
        shown += ["", tabulate(sorted(tried), headers=names, tablefmt="github", disable_numparse=True)]
    return "\n".join([*shown, *(f"left out: {name}: {why}" for name, why in found.faults.items())])
