"""C4: a target without its last layer is served in the place of the whole one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
from safetensors.torch import load_file, save_file

from harness.plan import ArmSpec, Deployment
from harness.protocols import Session
from reference_mechanisms.backend import open_session as open_reference

SERVED = Path("/tmp/served")  # noqa: S108 - in its room


def open_session(deployment: Deployment, arms: Sequence[ArmSpec]) -> Session:
    shutil.copytree(str(deployment.target.path), SERVED)
    config = json.loads((SERVED / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    config["num_hidden_layers"] = last
    (SERVED / "config.json").write_text(json.dumps(config))
    for place in SERVED.glob("*.safetensors"):
        kept = {name: tensor for name, tensor in load_file(place).items() if f".layers.{last}." not in name}
        place.unlink()
        save_file(kept, place, metadata={"format": "pt"})
    target = msgspec.structs.replace(deployment.target, path=str(SERVED))
    return open_reference(msgspec.structs.replace(deployment, target=target), arms)
