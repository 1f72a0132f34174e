"""Where explorers and the controller meet: an explorer is given a desk, and nothing else.

An explorer may be killed and started anew at any time. The desk answers what was asked before from
its record, so an explorer that is deterministic for its seed comes back to where it was without a
second measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from agent_loop.records import Budget, Candidate, Gap, Told
from harness.codec import Record
from harness.plan import Deployment, Param


class BudgetSpent(Exception):
    """A limit of a budget is reached: the explorer ends, and what it submitted stands."""

    def __init__(self, field: str, scope: str) -> None:
        """Name the limit (`Budget` field) and the scope it belongs to."""
        super().__init__(f"{scope}: budget of `{field}` is spent")
        self.field = field
        self.scope = scope


class Knob(Record, frozen=True):
    """One parameter that may be searched, with its values in order; the first stands for none given."""

    name: str
    values: tuple[Param, ...]


class Edit(Record, frozen=True):
    """A knob in a mechanism's source: its module is copied into a worktree and changed there.

    An arm that changes none is an arm like any other; one that does travels as a patch and runs as a guest.
    """

    name: str
    module: str  # dotted, of the package of the space's backend
    kind: Literal["constant", "default", "schedule"]
    at: str  # a constant's "NAME" or "Class.NAME", a default's "function.parameter", a schedule's function
    values: tuple[Param, ...]  # in order; the first leaves the source as it is
    old: str = ""  # of a schedule: the expression in the function that is replaced, there once
    new: str = ""  # of a schedule: what comes in its place, with "{value}" in it

    def __post_init__(self) -> None:
        """Refuse an edit that changes nothing, or does not say what."""
        if len(self.values) < 2:
            raise ValueError("`values` needs the one that leaves the source as it is, and another")
        if (self.kind == "schedule") != bool(self.old and "{value}" in self.new):
            raise ValueError('an edit of kind "schedule", and no other, has `old` and a `new` with "{value}"')


class Space(Record, frozen=True):
    """The arms that a knob search may make: fixed parameters and knobs of one mechanism."""

    mechanism: str
    backend: str
    gap: str = ""  # component of the cost model that it addresses; "": several
    fixed: dict[str, Param] = {}
    knobs: tuple[Knob, ...] = ()
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        """Hold that every knob has a name of its own, and every edit a module of the mechanism."""
        names = [*(one.name for one in self.knobs), *(one.name for one in self.edits)]
        if len(set(names)) != len(names):
            raise ValueError(f"`knobs` and `edits` need names, each once; got {names}")
        package = self.backend.partition(":")[0].partition(".")[0]
        for edit in self.edits:
            if edit.module.partition(".")[0] != package:
                raise ValueError(f"`edits`: {edit.module} is not of the backend's package, {package}")


class Brief(Record, frozen=True):
    """What an explorer is told before it begins."""

    campaign: str
    deployment: Deployment
    stock_backend: str
    stock_params: dict[str, Param]
    spaces: tuple[Space, ...]  # what the deployment's knobs are
    gaps: tuple[Gap, ...]  # ranked, largest first
    ceiling: float | None  # largest speedup over stock that the cost model leaves room for


class Recalled(Record, frozen=True):
    """A mechanism record as an explorer sees it: text is quoted and untrusted, numbers are measured."""

    record: str  # id
    mechanism: str
    explanation: str
    backend: str
    params: dict[str, Param]
    patch: str | None
    score: float  # orders the search; decides nothing
    expected_speedup: float | None  # on this deployment, shrunken
    unknown: tuple[str, ...]  # preconditions that could not be evaluated here
    warnings: tuple[str, ...]  # negative results and conflicts that match


class Desk(Protocol):
    """All that an explorer may ask. Calls block; one desk belongs to one explorer."""

    @property
    def brief(self) -> Brief:
        """What is known before the search."""
        ...

    @property
    def worktree(self) -> Path:
        """Folder of this explorer alone, where a patch is prepared."""
        ...

    def trial(self, candidates: Sequence[Candidate]) -> list[Told]:
        """Policy, build, losslessness and screen on public rows; several share the launches.

        A candidate that was tried before is answered from the record and costs nothing.

        Raises:
            BudgetSpent: of `trials`, `seconds`.
        """
        ...

    def recall(self, words: str = "", limit: int = 8) -> list[Recalled]:
        """Mechanism records whose preconditions do not exclude this deployment, best first."""
        ...

    def submit(self, candidate: Candidate) -> Told:
        """Ask for measurement and confirmation; answers what is known now.

        The verdict of a confirmation comes later, as one bit: `heard`.

        Raises:
            BudgetSpent: of `submissions`.
        """
        ...

    def heard(self) -> list[Told]:
        """Verdicts of this explorer's submissions so far, in the order they fell."""
        ...


class Explorer(Protocol):
    """Proposes; judges nothing."""

    @property
    def name(self) -> str:
        """Unique in a campaign."""
        ...

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """Search until the budget is spent or there is nothing left to try.

        Raises:
            BudgetSpent: may pass through; the controller treats it as the end of the search.
        """
        ...
