"""The grid as data, and its cells."""

from __future__ import annotations

from importlib import resources
from itertools import product
from typing import Literal, NamedTuple

from harness.codec import Record, from_toml
from harness.errors import UsageError

BF16 = 2  # bytes a parameter


class GridGpu(Record, frozen=True):
    """A GPU that results are reproduced on."""

    name: str
    gpu: str  # words of the driver's name
    memory_bytes: int
    bandwidth: float  # bytes a second, published


class GridRegime(Record, frozen=True):
    """How requests come."""

    name: str
    concurrency: int
    prompts: int  # of a set
    tune_prompts: int


class GridDrafter(Record, frozen=True):
    """A drafter for one target."""

    name: str
    method: str  # as vLLM calls it
    drafts: int  # as released
    hub: str | None = None  # None, and not built in: none is published
    revision: str | None = None  # None: looked up before the run
    parameters: int = 0
    built_in: bool = False  # lies in the target's own checkpoint
    mechanism: str | None = None  # as the reference engine calls it; None: it does not have it

    @property
    def published(self) -> bool:
        """Whether there is anything to run."""
        return self.built_in or self.hub is not None


class GridTarget(Record, frozen=True):
    """A target with its drafters."""

    name: str
    hub: str
    parameters: int
    drafters: tuple[GridDrafter, ...]
    revision: str | None = None
    shape: str | None = None  # published shape with dummy weights, for --system-only


class Grid(Record, frozen=True):
    """All of it."""

    schema: Literal["grid/1"]
    sets: tuple[str, ...]
    gpus: tuple[GridGpu, ...]
    regimes: tuple[GridRegime, ...]
    targets: tuple[GridTarget, ...]

    def gpu(self, name: str) -> GridGpu:
        """A GPU by its name here.

        Raises:
            UsageError: there is none; the message lists them.
        """
        found = next((one for one in self.gpus if one.name == name), None)
        if found is None:
            raise UsageError(f"no GPU {name!r} in the grid; there are {', '.join(g.name for g in self.gpus)}")
        return found


class Cell(NamedTuple):
    """One combination."""

    target: GridTarget
    drafter: GridDrafter
    set_name: str
    regime: GridRegime

    @property
    def key(self) -> str:
        """What `--only` takes, with the regime behind it."""
        return f"{self.target.name}/{self.drafter.name}/{self.set_name}/{self.regime.name}"


def load_grid() -> Grid:
    """The grid of the package."""
    return from_toml(
        (resources.files("harness.grid") / "grid.toml").read_text(encoding="utf-8"), Grid, "grid"
    )


def cells(grid: Grid, only: str | None = None) -> tuple[Cell, ...]:
    """The cells of the grid, those of unpublished drafters too.

    Args:
        grid: the grid.
        only: TARGET, TARGET/DRAFTER, TARGET/DRAFTER/SET or with /REGIME; `*` stands for all.

    Raises:
        UsageError: a part names nothing; the message lists what there is.
    """
    wanted = [part or "*" for part in (only or "*").split("/")]
    if len(wanted) > 4:
        raise UsageError(f"--only {only!r}: write TARGET/DRAFTER/SET or TARGET/DRAFTER/SET/REGIME")
    wanted += ["*"] * (4 - len(wanted))
    known = (
        {target.name for target in grid.targets},
        {drafter.name for target in grid.targets for drafter in target.drafters},
        set(grid.sets),
        {regime.name for regime in grid.regimes},
    )
    for part, names in zip(wanted, known, strict=True):
        if part != "*" and part not in names:
            raise UsageError(f"--only: no {part!r}; there are {', '.join(sorted(names))}")
    found = [
        Cell(target, drafter, set_name, regime)
        for target in grid.targets
        for drafter, set_name, regime in product(target.drafters, grid.sets, grid.regimes)
    ]
    chosen = tuple(cell for cell in found if _matches(cell, wanted))
    if not chosen:
        raise UsageError(f"--only {only!r}: the grid has no such combination")
    return chosen


def _matches(cell: Cell, wanted: list[str]) -> bool:
    return all(part in ("*", name) for part, name in zip(wanted, cell.key.split("/"), strict=True))
