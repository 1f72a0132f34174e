"""What must be true before anything is downloaded or measured: GPU, memory, disk, hub, packages.

Pure but for the machine that is passed in. On another GPU there is no run and no number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.claims.facts import same_gpu
from harness.environment import collect_environment
from harness.errors import ModelError
from harness.grid.records import BF16, Cell, GridGpu

SPARE = 10 * 10**9  # bytes of disk left over for reports and caches


class HubRepo(NamedTuple):
    """A repository as the hub tells of it."""

    sha: str  # commit
    bytes: int  # of the files that would be fetched and are not here yet


class Hub(Protocol):
    """The model hub, as far as a run needs it."""

    def look(self, repo: str, revision: str | None) -> HubRepo:
        """Commit and size; the newest commit where none is given.

        Raises:
            ModelError: it cannot be reached, or this account may not read it.
        """
        ...

    def fetch(self, repo: str, sha: str) -> Path:
        """The folder of that commit, downloaded if need be.

        Raises:
            ModelError: it cannot be downloaded.
        """
        ...


class Machine(NamedTuple):
    """What is here."""

    gpus: tuple[tuple[str, int], ...]  # name and bytes of memory
    free_disk: int  # bytes where models are kept
    vllm: str | None  # version


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    ok: bool
    detail: str


class Preflight(NamedTuple):
    """Whether the run may start, and what it would fetch."""

    checks: tuple[Check, ...]
    pins: dict[str, str]
    downloads: dict[str, int]  # bytes by repository
    driver_name: str | None

    @property
    def ok(self) -> bool:
        """Whether everything is."""
        return all(check.ok for check in self.checks)


def this_machine(cache: Path) -> Machine:
    """Look at this machine; `cache` is where models will lie."""
    gpus = collect_environment()["gpus"] or ()
    nearest = next(path for path in (cache, *cache.parents) if path.exists())
    try:
        vllm: str | None = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        vllm = None
    return Machine(
        gpus=tuple((str(gpu.get("name")), int(gpu.get("memory_bytes") or 0)) for gpu in gpus),
        free_disk=shutil.disk_usage(nearest).free,
        vllm=vllm,
    )


def gpu_check(machine: Machine, gpu: GridGpu) -> Check:
    """The first GPU is the wanted one."""
    if not machine.gpus:
        return Check("GPU", ok=False, detail=f"no GPU is seen here; this reproduces on {gpu.gpu}")
    name, memory = machine.gpus[0]
    if not same_gpu(name, gpu.gpu):
        return Check("GPU", ok=False, detail=f"this machine has {name}; this reproduces on {gpu.gpu}")
    return Check("GPU", ok=True, detail=f"{name}, {memory / 1e9:.0f} GB")


def preflight(chosen: Sequence[Cell], gpu: GridGpu, machine: Machine, hub: Hub) -> Preflight:
    """Look at everything, and report every fault at once.

    Args:
        chosen: cells with something to run.
        gpu: that is reproduced on.
        machine: this one.
        hub: asked for commits and sizes only; not at all if the GPU is another.
    """
    checks = [gpu_check(machine, gpu)]
    if not checks[0].ok:
        return Preflight(tuple(checks), {}, {}, None)
    found = machine.vllm
    detail = f"vLLM {found}" if found else "vLLM is not installed; pip install 'specpilot-harness[vllm]'"
    checks.append(Check("vLLM", ok=found is not None, detail=detail))
    pins: dict[str, str] = {}
    downloads: dict[str, int] = {}
    for repo, revision in _repos(chosen):
        try:
            told = hub.look(repo, revision)
        except ModelError as error:
            checks.append(Check(f"hub {repo}", ok=False, detail=str(error)))
            continue
        pins[repo], downloads[repo] = told.sha, told.bytes
        checks.append(
            Check(f"hub {repo}", ok=True, detail=f"{told.sha[:12]}, {told.bytes / 1e9:.1f} GB to fetch")
        )
    needed = sum(downloads.values()) + SPARE
    detail = f"{machine.free_disk / 1e9:.0f} GB free, {needed / 1e9:.0f} GB needed"
    checks.append(Check("disk", ok=machine.free_disk >= needed, detail=detail))
    return Preflight(tuple(checks), pins, downloads, machine.gpus[0][0])


def _repos(chosen: Iterable[Cell]) -> list[tuple[str, str | None]]:
    """Every repository once, targets first."""
    found: dict[str, str | None] = {}
    for cell in chosen:
        found.setdefault(cell.target.hub, cell.target.revision)
    for cell in chosen:
        if cell.drafter.hub is not None:
            found.setdefault(cell.drafter.hub, cell.drafter.revision)
    return list(found.items())


def expected_bytes(cell: Cell) -> int:
    """Download of a cell by its parameter counts, where the hub was not asked."""
    return (cell.target.parameters + cell.drafter.parameters) * BF16
