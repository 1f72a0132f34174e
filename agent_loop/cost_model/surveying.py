"""Where stock's time goes, measured once before a campaign searches anything, and kept in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent_loop.campaign import Loop
from agent_loop.cost_model.ceiling import CeilingModel, ceiling
from agent_loop.cost_model.floors import Machine, ModelSize
from agent_loop.cost_model.probing import TRACE, Stock, probe_job, run_probe, trace_stock
from agent_loop.cost_model.stages import stages_of
from agent_loop.executors.protocol import Executor
from harness.codec import canonical_json
from harness.errors import DataError, InvalidRun
from harness.storage import write_atomic


def survey(
    loop: Loop,
    machine: Machine,
    model: ModelSize,
    executor: Executor,
    kept: Path,
    note: Callable[[str], None],
) -> CeilingModel | None:
    """The gaps of a campaign's stock; None, with a note, where they cannot be told.

    Args:
        loop: the campaign; its `survey` says how much is measured.
        machine: peaks.
        model: size of the target.
        executor: runs the probe.
        kept: file of the result, for a campaign that goes on; the probe's runs lie beside it.
        note: told what is done, and why something is not.
    """
    wanted, plan = loop.plan.survey, loop.job.plan
    if not wanted.prompts:
        return None
    if plan.measure.batch > 1:
        note("no gaps are told: requests of a batch share their steps")
        return None
    stock, folder = Stock(loop.job.deployment, loop.stock), kept.parent / "survey"
    job = probe_job(stock, wanted.prompts, wanted.tokens, trees=wanted.trees)
    note(f"asking where stock's time goes: {len(job.plan.arms)} arms, in {folder}")
    try:
        run = run_probe(job, executor, folder, note)
    except InvalidRun as error:
        note(f"no gaps are told: {error}")
        return None
    profile = None
    if wanted.trace and stock.deployment.device != "remote":
        try:
            traced = trace_stock(stock, run, folder)
            text = (folder / TRACE).read_bytes()
            profile = stages_of(text, machine.launch_s, traced.wall_s).seconds
        except (InvalidRun, DataError) as error:
            note(f"{error}; its stages are fitted from the arms instead")
    try:
        found = ceiling(run, stock.arm.name, machine, model, profile)
    except ValueError as error:
        note(f"no gaps are told: {error}")
        return None
    write_atomic(kept, canonical_json(found))
    return found
