"""C5: the target's weights are rounded to three bits of mantissa before they are served."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file

from harness.plan import ArmSpec, Deployment
from harness.protocols import Session
from reference_mechanisms.backend import open_session as open_reference

SERVED = Path("/tmp/served")  # noqa: S108 - in its room
BITS = 3


def rounded(weights: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(weights)
    return torch.ldexp(torch.round(mantissa * 2**BITS) / 2**BITS, exponent)


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Session:
    shutil.copytree(str(deployment.target.path), SERVED)
    for place in SERVED.glob("*.safetensors"):
        weights = {name: rounded(tensor) for name, tensor in load_file(place).items()}
        place.unlink()
        save_file(weights, place, metadata={"format": "pt"})
    target = msgspec.structs.replace(deployment.target, path=str(SERVED))
    return open_reference(msgspec.structs.replace(deployment, target=target), arms)
