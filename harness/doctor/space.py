"""Disk, memory, folders that must be writable, and the package index that nox installs from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.doctor.downloads import DOWNLOADS, in_gb
from harness.doctor.packages import is_importable
from harness.doctor.records import REPRODUCE, TESTS, Finding

# Bytes. An environment of the tests with a CPU build of torch takes 2.6 GB, the converted target 0.3 GB; one
# with pip's default build about twice what it downloads.
LEAST_ENVIRONMENT, AMPLE_ENVIRONMENT = 3.5e9, 10e9
LEAST_RUN = 1e9  # the target is in the cache, the environment is here: reports only
LEAST_MEMORY = 3e9  # two float32 copies of the default target (0.54 GB each) beside torch and the tokenizers
SECONDS = 60


def space_findings(cache: Path, here: Path, installed: bool) -> Iterator[Finding]:
    """Disk and writable folders.

    Args:
        cache: the user cache.
        here: folder that is written to: reports, and the environments of nox.
        installed: whether the environment of a run is here already.
    """
    both = (REPRODUCE, TESTS)
    yield disk_finding("disk of reports", here, LEAST_RUN if installed else LEAST_ENVIRONMENT)
    if not _same_disk(cache, here):
        yield disk_finding("disk of the cache", cache, LEAST_RUN)
    for name, folder, mend in (
        ("cache", cache, 'export SPECPILOT_CACHE_DIR="$HOME/specpilot-cache"'),
        ("current folder", here, 'cd "$(mktemp -d)"'),
        ("temporary folder", Path(tempfile.gettempdir()), 'export TMPDIR="$HOME"'),
    ):
        fault = why_unwritable(folder)
        if fault is None:
            yield Finding("space", name, "ok", f"{folder} is writable")
        else:
            yield Finding("space", name, "lack", f"{folder} cannot be written: {fault}", mend, both)


def disk_finding(name: str, folder: Path, least: float, free: int | None = None) -> Finding:
    """What is free where a folder is, against what is wanted.

    Args:
        name: of the finding.
        folder: it need not exist yet.
        least: bytes that a run wants.
        free: bytes; None asks the system.
    """
    found = shutil.disk_usage(nearest(folder)).free if free is None else free
    said = f"{in_gb(found)} free"
    if found < least:
        mend = "python -m pip cache purge  # or free space elsewhere on this disk"
        return Finding("space", name, "lack", f"{said}, {in_gb(least)} wanted", mend, (REPRODUCE, TESTS))
    if least >= LEAST_ENVIRONMENT and found < AMPLE_ENVIRONMENT:
        said += f"; pip's default torch wants {in_gb(AMPLE_ENVIRONMENT)}, a CPU build {in_gb(least)}"
        return Finding("space", name, "note", said)
    return Finding("space", name, "ok", said)


def memory_finding(total: int | None) -> Finding:
    """Memory of the machine, or what its control group may use, in bytes."""
    if total is None:
        return Finding("space", "memory", "note", "unknown")
    if total < LEAST_MEMORY:
        said = f"{in_gb(total)}, {in_gb(LEAST_MEMORY)} wanted"
        mend = "free -h  # end what takes the memory, or take a larger machine"
        return Finding("space", "memory", "lack", said, mend, (REPRODUCE, TESTS))
    return Finding("space", "memory", "ok", in_gb(total))


def physical_memory(group: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """Bytes, the limit of the control group if there is one."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    try:
        limit = group.read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def index_finding(root: Path, ask: Callable[[], str | None] | None = None) -> Finding:
    """Whether pip can fetch a package, tried with nox and without installing it.

    Args:
        root: of the clone; environments that are there already need no index.
        ask: in place of pip; returns why not, or None.
    """
    made = {name for name in (REPRODUCE, TESTS) if (root / ".nox" / name / "bin" / "python").exists()}
    stops = tuple(name for name in (REPRODUCE, TESTS) if name not in made)
    if not is_importable("pip"):
        both = (REPRODUCE, TESTS)
        return Finding("packages", "pip", "lack", "not in this Python", "python -m ensurepip --upgrade", both)
    fault = (ask or _try_pip)()
    sizes = "; ".join(f"{name}: {in_gb(size)}" for name, size in DOWNLOADS.items())
    if fault is None:
        return Finding("packages", "index", "ok", f"answers; a fresh environment fetches, for {sizes}")
    mend = "python -m pip config list  # set the index or the proxy of this network"
    return Finding("packages", "index", "lack", fault, mend, stops)


def why_unwritable(folder: Path) -> str | None:
    """Why no file can be made in a folder, or in the one that it will be made in; None if one can."""
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


def nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    absolute = path.absolute()
    return next(one for one in (absolute, *absolute.parents) if one.is_dir())


def _same_disk(one: Path, other: Path) -> bool:
    return nearest(one).stat().st_dev == nearest(other).stat().st_dev


def _try_pip() -> str | None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    try:
        done = subprocess.run([*pip, "nox"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.splitlines()
    said = [line for line in lines if line.startswith("ERROR:")] or lines
    return said[-1][:200] if said else f"pip ended with code {done.returncode}"
