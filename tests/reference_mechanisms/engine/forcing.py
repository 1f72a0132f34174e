"""Drafts that are right and wrong at known places, on the host and on the device alike."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import DraftProgram, Proposal, StaticDrafter, Wanted
from reference_mechanisms.request import Event, Request


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
