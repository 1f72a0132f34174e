"""Runs the chosen cells one after another, resumably, and holds the paper's claims against what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.claims.decide import Verification, as_plain, verify
from harness.claims.facts import facts_of
from harness.claims.measure import Evidence
from harness.claims.records import Sourced, assume, load_claim
from harness.codec import from_json
from harness.errors import InvalidRun, UsageError
from harness.grid.jobs import Pins, Planned, TooLarge, mechanism_jobs, server_jobs, tune_job
from harness.grid.preflight import Hub, Preflight
from harness.grid.records import Cell, GridGpu
from harness.grid.tuning import (
    ATTENTION,
    GRAPHS,
    Setting,
    attention_backends,
    draft_lengths,
    graph_modes,
    tune,
)
from harness.oracle.stored import load_run
from harness.paths import RunFolder
from harness.plan import Job
from harness.results import Report
from harness.storage import write_atomic

Mode = Literal["new", "resume"]
Measure = Callable[[Job, Path, Mode], Report]
PAPER = {
    "single": ("paper/stock-single", "paper/single"),
    "batch32": ("paper/stock-batched", "paper/batched"),
}


class CellResult(NamedTuple):
    """What became of a cell."""

    cell: str
    status: Literal["done", "not published", "does not fit"]
    detail: str
    tuned: Setting | None = None
    reports: tuple[str, ...] = ()
    claims: tuple[Verification, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and how a grid is run."""

    gpu: GridGpu  # the preflight has found it here
    driver_name: str
    pins: Pins
    hub: Hub  # drafters are fetched from it
    out: Path  # a folder for each cell is made below it
    measure: Measure  # runs a job into a folder


def reproduce(
    chosen: Sequence[Cell], gpu: GridGpu, ready: Preflight, hub: Hub, out: Path, measure: Measure
) -> tuple[CellResult, ...]:
    """Measure every cell; a finished run folder is not measured again, summary.json follows each cell.

    Args:
        chosen: cells, those of unpublished drafters too: they are told as such.
        gpu: that is reproduced on.
        ready: a preflight in which everything was well.
        hub: drafters are fetched from it.
        out: folder of all runs.
        measure: runs a job into a folder.
    """
    site = Site(
        gpu=gpu,
        driver_name=str(ready.driver_name),
        pins=Pins(_kept_pins(out, ready.pins)),
        hub=hub,
        out=out,
        measure=measure,
    )
    results: list[CellResult] = []
    tuned: dict[str, Setting] = {}
    for cell in chosen:
        results.append(_cell(cell, site, tuned))
        write_atomic(out / "summary.json", json.dumps(_summary(site, results), indent=2) + "\n")
    return tuple(results)


def planned(cell: Cell, gpu: GridGpu, pins: Pins) -> tuple[Planned, ...]:
    """The runs of a cell before tuning, for estimates: tuned stock is planned as what changes most.

    Raises:
        TooLarge: the cell does not fit the GPU.
    """
    released = Setting(cell.drafter.drafts)
    settings = (*draft_lengths(cell.drafter), *graph_modes(released), *attention_backends(released))
    changed = Setting(max(1, cell.drafter.drafts - 1), GRAPHS[0], ATTENTION[0])
    own = mechanism_jobs(cell, gpu, pins, gpu.gpu, "drafter")
    tuning = (tune_job(cell, gpu, pins, setting) for setting in settings)
    return (*tuning, *server_jobs(cell, gpu, pins, changed), *own)


def _cell(cell: Cell, site: Site, tuned: dict[str, Setting]) -> CellResult:
    """`tuned` holds settings by target, drafter and regime; what is found here is added."""
    if not cell.drafter.published:
        return CellResult(
            cell.key, "not published", f"no {cell.drafter.name} is published for {cell.target.name}"
        )
    shared = f"{cell.target.name}-{cell.drafter.name}-{cell.regime.name}"
    try:
        if shared not in tuned:
            tuned[shared] = _tune(cell, site, site.out / "tuning" / shared)
        runs = list(server_jobs(cell, site.gpu, site.pins, tuned[shared]))
    except TooLarge as error:
        return CellResult(cell.key, "does not fit", str(error))
    if cell.drafter.mechanism is not None and cell.drafter.hub is not None:
        folder = site.hub.fetch(cell.drafter.hub, site.pins.of[cell.drafter.hub])
        runs += mechanism_jobs(cell, site.gpu, site.pins, site.driver_name, str(folder))
    folders = [site.out / cell.key / run.name for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        _once(run.job, folder, site.measure)
    verified = tuple(found for folder in folders for found in paper_claims(folder, cell))
    detail = f"stock tuned to {tuned[shared].words}; released with {cell.drafter.drafts} drafts"
    return CellResult(cell.key, "done", detail, tuned[shared], tuple(map(str, folders)), verified)


def _tune(cell: Cell, site: Site, root: Path) -> Setting:
    """The setting under which stock is fastest, on prompts of no set; tuning.json tells what was tried."""

    def speed(setting: Setting) -> float | None:
        run = tune_job(cell, site.gpu, site.pins, setting)
        try:
            report = _once(run.job, root / run.name, site.measure)
        except InvalidRun:
            if setting.plain:
                raise
            return None  # this vLLM does not run so on this GPU
        (stock,) = [arm for arm in report.arms if arm.kind == "stock"]
        return stock.tokens_per_second if report.status == "valid" else None

    best, tried = tune(cell.drafter, speed)
    told = {setting.name: found for setting, found in tried.items()}
    chosen = None if best is None else best.name
    text = json.dumps({"chosen": chosen, "tokens_per_second": told}, indent=2)
    write_atomic(root / "tuning.json", text + "\n")
    if best is None:
        raise InvalidRun(f"{cell.key}: every tuning run was invalid; read the reports in {root}")
    return best


def _once(job: Job, folder: Path, measure: Measure) -> Report:
    """A finished run of this very job is read, an unfinished one is continued."""
    place = RunFolder(folder)
    if place.report_json.exists():
        report = from_json(place.report_json.read_bytes(), Report, str(place.report_json))
        if report.plan.hash == job.hash:
            return report
        raise UsageError(f"{folder} holds a run of another plan; choose another --out, or remove it")
    return measure(job, folder, "resume" if place.job.exists() else "new")


def paper_claims(folder: Path, cell: Cell) -> tuple[Verification, ...]:
    """The paper's claims of this regime against every arm of a run that they can speak of.

    The paper names no target, drafter, GPU or set in what we have: the cell's own are assumed, and the
    verification says so.
    """
    run = load_run(folder)
    names = PAPER.get(cell.regime.name, ())
    arms = [arm.name for arm in run.job.plan.arms if arm.kind in ("stock", "candidate")]
    found = []
    for arm in arms:
        for name in names:
            sourced = _assumed(load_claim(name), run.report, arm, cell)
            found.append(verify(sourced, Evidence(run.report, run.responses, run.prompts, arm)))
    return tuple(found)


def _assumed(sourced: Sourced, report: Report, arm: str, cell: Cell) -> Sourced:
    facts = facts_of(report, arm)
    told = {
        "target": facts.target,
        "drafter": facts.drafter,
        "gpu": facts.gpu,
        "concurrency": facts.concurrency,
        "temperature": facts.temperature,
    }
    words = {
        field: str(value)
        for field, value in told.items()
        if value is not None and getattr(sourced.claim, field) is None
    }
    return assume(sourced, {**words, "sets": cell.set_name})


def _kept_pins(out: Path, fresh: dict[str, str]) -> dict[str, str]:
    """Commits of an earlier start of this reproduction win: a resumed run stays on its models."""
    path = out / "pins.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    pins = {**fresh, **kept}
    write_atomic(path, json.dumps(pins, indent=2, sort_keys=True) + "\n")
    return pins


def _summary(site: Site, results: Sequence[CellResult]) -> dict[str, Any]:
    return {
        "gpu": site.gpu.name,
        "driver_name": site.driver_name,
        "pins": dict(site.pins.of),
        "cells": [
            {
                **one._asdict(),
                "tuned": None if one.tuned is None else one.tuned._asdict(),
                "claims": [as_plain(claim) for claim in one.claims],
            }
            for one in results
        ],
    }
