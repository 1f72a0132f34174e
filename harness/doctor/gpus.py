"""The GPUs that the driver shows, with what is free on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.doctor.downloads import in_gb
from harness.doctor.packages import install_words, is_importable
from harness.doctor.records import Finding
from harness.nvml import Nvml, open_nvml

DEVICES = Path("/dev")


def gpu_findings(root: Path) -> Iterator[Finding]:
    """What the driver says, or why it cannot be asked."""
    nvml = open_nvml()
    if nvml is None:
        yield silent(root)
        return
    try:
        yield from told(nvml)
    finally:
        nvml.close()


def told(nvml: Nvml) -> Iterator[Finding]:
    """One finding a GPU."""
    gpus = nvml.facts()
    if not gpus:
        yield Finding("GPUs", "GPU", "note", "the driver is here and shows none")
    for number, (gpu, free) in enumerate(zip(gpus, nvml.free_bytes(), strict=True)):
        total = gpu["memory_bytes"]
        memory = "" if total is None or free is None else f", {in_gb(free)} of {in_gb(total)} free"
        kind = f"{gpu['name']}, compute capability {gpu['compute_capability']}{memory}"
        yield Finding("GPUs", f"GPU {number}", "ok", f"{kind}; driver {gpu['driver']}")


def silent(root: Path) -> Finding:
    """Nobody answers: there is no GPU, or no binding to ask with, or a broken driver."""
    nodes = sorted(path.name for path in DEVICES.glob("nvidia[0-9]*"))
    if not nodes and shutil.which("nvidia-smi") is None:
        return Finding("GPUs", "GPU", "note", "none; what needs one is not available")
    if not is_importable("pynvml"):
        said = "a driver is here, and no Python binding to ask it"
        return Finding("GPUs", "driver", "lack", said, install_words(root, "gpu"))
    return Finding(
        "GPUs", "driver", "lack", f"it does not answer ({', '.join(nodes) or 'no device'})", "nvidia-smi"
    )
