"""Drafts that are right and wrong at known places, on the host and on the device alike."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import (
    DraftProgram,
    PlantingDrafter,
    Proposal,
    StaticDrafter,
    TreeProgram,
    Wanted,
)
from reference_mechanisms.kernels.step.trees import TreeTurn, put
from reference_mechanisms.request import Event, Request
from reference_mechanisms.verification.tree import PADDING


class Script:
    """What to draft for the output's n-th token: the recorded one, or at random places its neighbour."""

    def __init__(self, recorded: Sequence[int], vocab: int, seed: int, wrong: float = 0.3) -> None:
        rng = random.Random(seed)  # noqa: S311 - test data
        self.tokens = tuple((token + (rng.random() < wrong)) % vocab for token in recorded)


class ScriptedDrafter:
    """Proposes a script from the host, for one request."""

    def __init__(self, script: Script, drafts: int) -> None:
        self.script, self.drafts = script, drafts

    def begin(self, slot: int, request: Request) -> None:
        pass

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [
            Proposal(self.script.tokens[len(one.token_ids) :][: min(self.drafts, one.limit)])
            for one in wanted
        ]


class ScriptedProgram:
    """Runs a real program whole, keeps what it drafted, and hands on the script instead."""

    def __init__(self, inner: DraftProgram, script: Script, prompt: int, device: torch.device) -> None:
        padded = (*script.tokens, *[0] * 64)
        self.inner, self.drafts, self.first = inner, inner.drafts, prompt
        self.table = torch.tensor(padded, device=device)
        self.index = torch.arange(self.drafts, device=device) + 1
        self.drafted: list[tuple[Tensor, Tensor]] = []  # on the CPU: start, draft

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        self.inner.absorb(taps, positions, following, last)

    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        made = self.inner.draft(anchor, start)
        if not made.is_cuda:
            self.drafted.append((start.clone(), made.clone()))
        places = (start - self.first + self.index).clamp(0, len(self.table) - 1)
        return self.table[places] + 0 * made


class ScriptedStatic:
    """A drafter whose program is scripted."""

    def __init__(self, inner: StaticDrafter, script: Script, prompt: Sequence[int], device: str = "cpu"):
        self.inner, self.script, self.prompt, self.device = inner, script, prompt, torch.device(device)
        self.made: ScriptedProgram | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        return self.inner.taps

    @property
    def key(self) -> Hashable:
        return self

    def program(self, positions: int) -> DraftProgram:
        inner = self.inner.program(positions)
        self.made = ScriptedProgram(inner, self.script, len(self.prompt), self.device)
        return self.made

    def begin(self, slot: int, request: Request) -> None:
        raise AssertionError("a lane that drives itself asks no drafter")

    def extend(self, slot: int, taps: Tensor) -> None:
        raise AssertionError("a lane that drives itself asks no drafter")

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        raise AssertionError("a lane that drives itself asks no drafter")


def ids_of(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


class Grove:
    """Trees of fixed shapes in turn, each with a path of a recorded continuation that may break off."""

    # Parent row of each node in the order of depth, and the rows of the right path.
    SHAPES = (
        ((0, 0, 0, 1, 2, 2, 4, 6, 6, 8, 9), (2, 6, 9, 11)),
        ((0, 1, 2, 3), (1, 2, 3, 4)),
        ((0,) * 11, (7,)),
        ((0, 0, 2, 2, 4, 4, 6, 6), (2, 4, 6, 8)),
    )

    def __init__(self, recorded: Sequence[int], vocab: int, seed: int, device: torch.device) -> None:
        rng = random.Random(seed)  # noqa: S311 - test data
        shapes = [self._shape(rows, path[: rng.randrange(5)]) for rows, path in self.SHAPES for _ in range(5)]
        rng.shuffle(shapes)
        most = max(len(parents) for parents, _, _ in shapes)
        padded = [
            [[*part, *[fill] * (most - len(part))] for part in one for fill in (PADDING,)] for one in shapes
        ]
        self.parents, self.depths, self.shifts = torch.tensor(padded, device=device).unbind(1)
        self.table = torch.tensor([*recorded, *[0] * 64], device=device)
        self.vocab = vocab

    def _shape(self, rows: Sequence[int], right: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Parents (nodes), depths, and how far each token lies from the recorded one: 0 on the right path."""
        depths, shifts = [0], [0]
        for row, parent in enumerate(rows, start=1):
            depths.append(depths[parent] + 1)
            shifts.append(0 if row in right else row)
        assert depths == sorted(depths)
        return [parent - 1 for parent in rows], depths[1:], shifts[1:]

    def put(self, turn: TreeTurn, first: int, levels: int) -> None:
        """Plant the next tree behind the anchor; `first` is the position of the output's first token."""
        place = turn.start - first
        which = place % len(self.parents)
        depths = self.depths[which][0]
        known = self.table[(place + depths).clamp(0, len(self.table) - 1)]
        tokens = (known + self.shifts[which][0]) % self.vocab
        fits = (self.parents[which][0] > PADDING) & (depths <= turn.limit.clamp_max(levels))
        put(tokens, torch.where(fits, self.parents[which][0], PADDING), turn)


class GroveProgram:
    """Runs a real program whole, and puts another tree in place of its own."""

    def __init__(self, inner: TreeProgram, grove: Grove, prompt: int) -> None:
        self.inner, self.drafts, self.grove, self.first = inner, inner.drafts, grove, prompt
        self.planted: list[tuple[int, Tensor, Tensor]] = []  # on the CPU: start, tokens, parents

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        self.inner.absorb(taps, positions, following, last)

    def plant(self, turn: TreeTurn) -> None:
        self.inner.plant(turn)
        if not turn.state.is_cuda:
            self.planted.append((int(turn.start), turn.ids.clone(), turn.parents.clone()))
        self.grove.put(turn, self.first, self.drafts)


class GroveDrafter(ScriptedStatic):
    """A drafter whose program plants the trees of a grove."""

    def __init__(self, inner: PlantingDrafter, grove: Grove, prompt: Sequence[int]) -> None:
        self.planting, self.grove, self.prompt = inner, grove, prompt
        self.inner = inner  # type: ignore[assignment]
        self.program_made: GroveProgram | None = None

    @property
    def nodes(self) -> int | None:
        return self.planting.nodes

    def planter(self, positions: int) -> TreeProgram:
        self.program_made = GroveProgram(self.planting.planter(positions), self.grove, len(self.prompt))
        return self.program_made
