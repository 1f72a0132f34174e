"""Measures a table of costs and writes it with what it was measured on."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from reference_mechanisms.batching.costs import FILE, Setup, StepCosts
from reference_mechanisms.batching.measuring.steps import Load, Steps, Subject
from reference_mechanisms.batching.measuring.timing import Clock, Told

Now = Callable[[], datetime.datetime]


class Named(NamedTuple):
    """What the file says of target and drafter."""

    target: str
    target_sha256: str
    drafter: str
    drafter_sha256: str
    weights_format: str


class Watch(NamedTuple):
    """Time, and who is told of progress."""

    clock: Clock
    now: Now
    told: Told


def measure(subject: Subject, named: Named, load: Load, watch: Watch, out: Path) -> str:
    """Measure and write.

    Args:
        subject: target and drafter.
        named: in the file.
        load: to measure under.
        watch: clock, date, progress.
        out: the file.

    Returns:
        What was found, for people.

    Raises:
        TargetError: steps of fixed shape cannot run the target, or do not fit the device.
    """
    steps = Steps(subject, load, watch.clock)
    costs = steps.costs(watch.told)
    target = subject.target
    cuda = target.device.type == "cuda"
    setup = Setup(
        **named._asdict(),
        device=torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        dtype=str(target.dtype).removeprefix("torch."),
        context=load.context,
        graphs=cuda,
        repeats=load.rounds,
        measured=watch.now().astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    FILE.write(out, setup, costs)
    return text_of(setup, costs, steps.about)


def text_of(setup: Setup, costs: StepCosts, about: str) -> str:
    """The table for people: median milliseconds with their quartiles."""
    lines = [f"{setup.target}, drafter {setup.drafter}, {setup.device}, {about}; {setup.measured}"]
    for one in (*costs.verify, *costs.between):
        what = "verify" if one in costs.verify else "unpadded"
        lines.append(f"  {what:9}{one.requests:4} requests {one.rows:5} rows   {_ms(one)}")
    lines += [f"  draft    {one.requests:4} requests {one.drafts:5} drafts {_ms(one)}" for one in costs.draft]
    lines += [f"  prompt   {one.rows:19} rows   {_ms(one)}" for one in costs.prefill]
    lines += [f"  both     {one.requests:4} requests {one.rows:5} rows   {_ms(one)}" for one in costs.overlap]
    lines.append(f"  host     {costs.step_ms:39.3f} ms")
    return "\n".join(lines)


def _ms(one: object) -> str:
    milliseconds, quartiles = getattr(one, "milliseconds"), getattr(one, "quartiles_ms")  # noqa: B009
    return f"{milliseconds:9.3f} ms ({quartiles[0]:.3f} to {quartiles[1]:.3f})"
