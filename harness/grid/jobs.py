"""From a cell to the runs that measure it: stock is tuned first, then told as released and as tuned.

A cell has three parts, each a run folder of its own. `tune`: vLLM at other draft lengths, graphs and
attention backends (`harness.grid.tuning`), on prompts that are in no evaluation set. `servers`: vLLM plain,
as released, and tuned. `mechanisms`: the reference engine, plain and with the drafter, every draft verified
by the same target. Where the arms of a part do not fit the GPU together, each gets a run beside an `ar` of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from harness.errors import UsageError
from harness.grid.records import BF16, Cell, GridGpu
from harness.grid.tuning import Setting
from harness.plan import (
    ArmSpec,
    Deployment,
    Job,
    MeasureSpec,
    ModelSpec,
    OracleSpec,
    Param,
    Plan,
    SetSpec,
)
from harness.records import Sampling

Part = Literal["tune", "servers", "mechanisms"]
VLLM = "harness.backends.vllm_managed:open_session"
REFERENCE = "reference_mechanisms.backend:open_session"
MAX_TOKENS = 512
TUNE_TOKENS = 128
CONTEXT = 4096
MARGIN = 0.9  # of the GPU's memory may be planned
ROOM = 4 * 2**30  # bytes an arm takes beside its weights: KV cache, graphs, activations
SERVER_START_S = 150.0
EFFICIENCY = 0.75  # of the memory bandwidth, for estimates
GAIN = 2.5  # of speculation, for estimates


class TooLarge(UsageError):
    """The arms of a cell do not fit the GPU, not even two at a time."""


class Pins(NamedTuple):
    """Commits of the hub, by repository."""

    of: Mapping[str, str]


class Planned(NamedTuple):
    """A run of a cell."""

    name: str  # of its folder below the cell's
    part: Part
    job: Job
    seconds: float  # about


def tune_job(cell: Cell, gpu: GridGpu, pins: Pins, setting: Setting) -> Planned:
    """A short run of stock under a setting, plain vLLM under the same beside it.

    Raises:
        TooLarge: two copies of the target do not fit the GPU.
    """
    _refuse_too_large(cell, gpu, 2)
    arms = (_vllm_ar(cell, 2, setting), _vllm_stock(cell, pins, setting.name, "stock", setting, 2))
    return _planned(cell, gpu, pins, f"tune-{setting.name}", "tune", arms)


def server_jobs(cell: Cell, gpu: GridGpu, pins: Pins, tuned: Setting) -> tuple[Planned, ...]:
    """Plain, released and tuned stock in one run; in two where they do not fit or do not run alike.

    Speculation is divided by plain decoding with the same graphs and attention, never with others.

    Raises:
        TooLarge: two copies of the target do not fit the GPU.
    """
    released = Setting(cell.drafter.drafts)
    stock = [("stock", "stock", released)]
    if tuned != released:
        stock.append(("tuned", "candidate", tuned))
    together = 1 + len(stock)
    if tuned.plain and _fit(cell, gpu, together):
        arms = [_vllm_ar(cell, together, released)]
        arms += [_vllm_stock(cell, pins, name, kind, setting, together) for name, kind, setting in stock]
        return (_planned(cell, gpu, pins, "servers", "servers", arms),)
    _refuse_too_large(cell, gpu, 2)
    return tuple(
        _planned(
            cell,
            gpu,
            pins,
            f"servers-{name}",
            "servers",
            (_vllm_ar(cell, 2, setting), _vllm_stock(cell, pins, name, kind, setting, 2)),
        )
        for name, kind, setting in stock
    )


def mechanism_jobs(
    cell: Cell, gpu: GridGpu, pins: Pins, driver_name: str, checkpoint: str | None
) -> tuple[Planned, ...]:
    """The reference engine with this drafter; empty where it does not have it.

    Args:
        cell: of the grid.
        gpu: that is reproduced on.
        pins: commits of the hub.
        driver_name: name of the GPU as the driver gives it: on another one the run is invalid.
        checkpoint: folder of the drafter.
    """
    if cell.drafter.mechanism is None or checkpoint is None:
        return ()
    drafting: dict[str, Param] = {
        "drafter": cell.drafter.mechanism,
        "checkpoint": checkpoint,
        "drafts": cell.drafter.drafts,
    }
    arms = (
        ArmSpec(name="ar", kind="ar", backend=REFERENCE, params={"drafter": "none"}),
        ArmSpec(name="stock", kind="stock", backend=REFERENCE, params=drafting),
        ArmSpec(name="null", kind="null", backend=REFERENCE, params={"drafter": "null", "drafts": 4}),
        ArmSpec(name="replay", kind="replay", backend=REFERENCE, params={"drafter": "replay", "drafts": 7}),
    )
    return (_planned(cell, gpu, pins, "mechanisms", "mechanisms", arms, driver_name),)


def _planned(
    cell: Cell,
    gpu: GridGpu,
    pins: Pins,
    name: str,
    part: Part,
    arms: Sequence[ArmSpec],
    driver_name: str | None = None,
) -> Planned:
    tuning, regime = part == "tune", cell.regime
    own_engine = part == "mechanisms"
    drawn = SetSpec(
        name="embedded" if tuning else cell.set_name,
        count=regime.tune_prompts if tuning else regime.prompts,
    )
    measure = MeasureSpec(
        launches=1 if tuning else 3,
        blocks=2 if tuning else 5,
        batch=drawn.count if regime.concurrency > 1 else 1,
        seed=1,
        warmup_prompts=min(regime.concurrency + 1, drawn.count),
        max_foreign_load=0.5,
        dedicated_gpu=True,
        capture_logits=own_engine,
    )
    plan = Plan(
        schema="plan/1",
        name=f"{cell.key.replace('/', '-')}-{name}",
        deployment=f"{cell.target.name}-{gpu.name}",
        label="smoke" if tuning else "full",
        sets=(drawn,),
        arms=tuple(arms),
        sampling=Sampling(max_tokens=TUNE_TOKENS if tuning else MAX_TOKENS),
        measure=measure,
        oracle=OracleSpec(calibration_prompts=4),
        note="Chooses draft length, graphs and attention of stock; behind no claim." if tuning else "",
    )
    deployment = Deployment(
        schema="deployment/1",
        name=f"{cell.target.name}-{gpu.name}",
        target=ModelSpec(hub=cell.target.hub, revision=pins.of[cell.target.hub]),
        device="cuda" if own_engine else "remote",
        context_length=CONTEXT,
        gpu=driver_name if own_engine else None,
    )
    job = Job(plan=plan, deployment=deployment)
    return Planned(name, part, job, _seconds(cell, gpu, job))


def _vllm_ar(cell: Cell, arms: int, setting: Setting) -> ArmSpec:
    return ArmSpec(name="ar", kind="ar", backend=VLLM, params=_vllm_params(cell, arms, setting.arguments))


def _vllm_stock(cell: Cell, pins: Pins, name: str, kind: str, setting: Setting, arms: int) -> ArmSpec:
    drafter = cell.drafter
    config: dict[str, str | int] = {"method": drafter.method, "num_speculative_tokens": setting.drafts}
    if drafter.hub is not None:
        config |= {"model": drafter.hub, "revision": pins.of[drafter.hub]}
    if drafter.method == "dflash":
        config["attention_backend"] = "FLASH_ATTN"  # a block looks at all of its own places
    extra = f"{setting.arguments} --speculative-config '{json.dumps(config, sort_keys=True)}'"
    return ArmSpec(
        name=name,
        kind="candidate" if kind == "candidate" else "stock",
        backend=VLLM,
        params=_vllm_params(cell, arms, extra),
    )


def _vllm_params(cell: Cell, arms: int, extra: str) -> dict[str, Param]:
    """Equal memory for every arm; what is not given is as vLLM sets it by default."""
    share = round(MARGIN / arms, 2)
    arguments = f"--max-num-seqs {max(8, cell.regime.concurrency)} --gpu-memory-utilization {share}{extra}"
    return {
        "concurrency": cell.regime.concurrency,
        "arguments": arguments,
        "environment": "VLLM_SERVER_DEV_MODE=1",
    }


def _fit(cell: Cell, gpu: GridGpu, arms: int) -> bool:
    return needed_bytes(cell, arms) <= MARGIN * gpu.memory_bytes


def needed_bytes(cell: Cell, arms: int) -> int:
    """GPU memory of so many servers at once: weights in bfloat16, a drafter for all but one, and room."""
    return arms * (cell.target.parameters * BF16 + ROOM) + (arms - 1) * cell.drafter.parameters * BF16


def _refuse_too_large(cell: Cell, gpu: GridGpu, arms: int) -> None:
    if not _fit(cell, gpu, arms):
        raise TooLarge(
            f"{cell.key}: plain and speculative vLLM side by side need "
            f"{needed_bytes(cell, arms) / 1e9:.0f} GB, {gpu.name} has {gpu.memory_bytes / 1e9:.0f} GB"
        )


def _seconds(cell: Cell, gpu: GridGpu, job: Job) -> float:
    """By the time one read of the weights takes; batches share it, but never gain all of it."""
    measure, sampling = job.plan.measure, job.plan.sampling
    single = EFFICIENCY * gpu.bandwidth / (cell.target.parameters * BF16)
    rate = single * max(1.0, 0.5 * cell.regime.concurrency)
    tokens = measure.launches * measure.blocks * job.plan.sets[0].count * sampling.max_tokens
    plain = sum(arm.kind in ("ar", "null") for arm in job.plan.arms)
    fast = len(job.plan.arms) - plain
    starts = measure.launches * SERVER_START_S
    return starts + tokens / rate * (plain + fast / GAIN)
