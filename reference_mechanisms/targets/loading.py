"""A target of whatever architecture a model folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reference_mechanisms.engine.target import Target
from reference_mechanisms.targets.config import ARCHITECTURES, read_json
from reference_mechanisms.targets.fields import architecture
from reference_mechanisms.targets.hybrid import load_hybrid
from reference_mechanisms.targets.hybrid_config import HYBRIDS, RUNS
from reference_mechanisms.targets.llama import load_llama


def load_target(folder: Path, dtype: torch.dtype, device: torch.device) -> Target:
    """Load a target from a Hugging Face folder.

    Raises:
        TargetError: the folder is not a complete, unquantised checkpoint of a known architecture.
    """
    return (load_llama if is_dense(folder) else load_hybrid)(folder, dtype, device)


def is_dense(folder: Path) -> bool:
    """Whether the target of a folder has attention layers only.

    Raises:
        TargetError: its architecture is not known.
    """
    where = folder / "config.json"
    return is_dense_config(read_json(where), str(where))


def is_dense_config(raw: Mapping[str, Any], where: str) -> bool:
    """The same of the fields of a config.json.

    Raises:
        TargetError: naming `where`.
    """
    return architecture(raw, {*ARCHITECTURES, *HYBRIDS}, RUNS, where) in ARCHITECTURES
