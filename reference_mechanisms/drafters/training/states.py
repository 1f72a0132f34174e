"""What a training run leaves on disk while it goes: everything to go on from, in safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from reference_mechanisms.drafters.training.loop import Point, Student
from reference_mechanisms.errors import DrafterError

STATE = "state.safetensors"
Curves = dict[str, list[Point]]


class Reached(NamedTuple):
    """Where a run is."""

    step: int  # steps done
    curves: Curves  # so far
    seconds: float  # of training, all parts of the run together


def save_state(folder: Path, students: Sequence[Student], plan_sha256: str, reached: Reached) -> None:
    """Replace the state of a run in one step, so that a crash leaves the old one."""
    tensors = {
        f"{one.name}/{name}": tensor.detach().cpu().contiguous()
        for one in students
        for name, tensor in one.tensors().items()
    }
    told = {name: [asdict(point) for point in points] for name, points in reached.curves.items()}
    metadata = {
        "step": str(reached.step),
        "plan_sha256": plan_sha256,
        "curves": json.dumps(told),
        "seconds": str(reached.seconds),
    }
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{STATE}"
    save_file(tensors, new, metadata)
    new.replace(folder / STATE)


@torch.no_grad()
def load_state(folder: Path, students: Sequence[Student], plan_sha256: str) -> Reached:
    """Put students back to where a run stopped.

    Raises:
        DrafterError: there is no state, it is of another plan, or it does not fit the students.
    """
    path = folder / STATE
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("plan_sha256") != plan_sha256:
                raise DrafterError(
                    f"{path} is of another plan; give another --out, or train without --resume"
                )
            stored = set(file.keys())
            wanted = {
                f"{one.name}/{name}": tensor for one in students for name, tensor in one.tensors().items()
            }
            if stored != set(wanted):
                odd = min(stored ^ set(wanted))
                raise DrafterError(f"{path}: {odd} is stored or wanted, not both; train without --resume")
            for name, tensor in wanted.items():
                found = file.get_tensor(name)
                if found.shape != tensor.shape:
                    shapes = f"{tuple(found.shape)}, not {tuple(tensor.shape)}"
                    raise DrafterError(f"{path}: {name} has shape {shapes}; train without --resume")
                tensor.copy_(found)
        told = json.loads(metadata["curves"])
        curves = {name: [Point(**point) for point in points] for name, points in told.items()}
        return Reached(int(metadata["step"]), curves, float(metadata["seconds"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DrafterError(f"cannot go on from {path}: {error}; train without --resume") from None
