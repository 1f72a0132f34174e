"""The programs of one kind of drafter, and the host's side of them; one request at a time.

A lane is a verify step, and where the drafter can run so too, the drafter's next draft behind it, as one
program. Such a lane drives itself: the host starts a step before it has read the one in front, so the
device never waits. Any other drafter is asked on the host and its draft loaded into the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import DraftProgram, TreeProgram
from reference_mechanisms.engine.choices import NO_NUMBERS
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.mail import Mail
from reference_mechanisms.engine.static_step import Report, VerifyStep
from reference_mechanisms.engine.static_tree import TreeStep
from reference_mechanisms.errors import RequestError

PROMPT_ROWS = 256  # prompt positions that a drafter takes in at a time


class Checked(NamedTuple):
    """One verify step, as far as it counts."""

    draft: tuple[int, ...]
    plain: list[int]  # argmax of each row
    logits: Tensor  # [1 + draft, vocabulary], until the next step starts
    tapped: Tensor  # [1 + draft, taps x hidden], until the next step
    drafted: int  # tokens that were verified; of a tree that drives itself, `draft` is the accepted path


class Opening(NamedTuple):
    """How a lane begins."""

    ahead: int | None = None  # steps started before one is read, at most 1; None: 1 on CUDA, else 0
    start: int = 0  # positions of the cache that a request needs kept


class Lane(ABC):
    """What lanes of chains and of trees share."""

    def __init__(
        self, report: Tensor, draft: DraftProgram | TreeProgram | None, graphs: Graphs, opening: Opening
    ) -> None:
        """Record the programs; what is recorded runs first, and writes behind the positions that count.

        Args:
            report: of the step.
            draft: what makes the drafts of a lane that drives itself.
            graphs: record the programs.
            opening: how the lane begins.
        """
        self._absorbing = draft
        self._mail = Mail(report)
        self._most_ahead = int(report.is_cuda) if opening.ahead is None else opening.ahead
        self._ahead = 0
        self._device = report.device
        self._stand(0, opening.start, 0)
        self._first = None if draft is None else graphs.program(self._make_draft)
        self._whole = graphs.program(self._verify if draft is None else self._verify_and_draft)

    def begin(
        self, prompt: Sequence[int], tapped: Tensor, anchor: int, limit: int, *, ahead: bool = False
    ) -> None:
        """Stand behind a prompt that the cache holds, to drive itself from here.

        Args:
            prompt: its tokens.
            tapped: tapped hidden states of its positions, [positions, taps x hidden].
            anchor: the first token behind it.
            limit: most draft tokens that can be used, one behind the other.
            ahead: start a step before the one in front of it is read; its logits are then lost.
        """
        self._mail.clear()
        self._ahead = self._most_ahead if ahead else 0
        self._stand(anchor, len(prompt), limit)
        if self._absorbing is None or self._first is None:
            return
        following = torch.tensor([*prompt[1:], anchor], device=self._device)
        for first in range(0, len(prompt), PROMPT_ROWS):
            piece = slice(first, first + PROMPT_ROWS)
            rows = tapped[piece]
            positions = torch.arange(first, first + len(rows), device=self._device)
            last = positions[-1:] - first
            self._absorbing.absorb(rows, positions, following[piece], last)
        self._first()

    def step(self, start: int) -> Checked:
        """Verify the draft that the device holds, and make the next one.

        Args:
            start: position of the anchor, as the host knows it.

        Raises:
            ValueError: the device stands elsewhere.
            RequestError: a logit is not a number.
        """
        while self._mail.waiting <= self._ahead:
            self._whole()
            self._mail.send()
        return self._read(self._mail.receive(), start)

    def replay(self, anchor: int, start: int, limit: int, steps: int) -> None:
        """Run steps one behind the other and read none of them: for a clock.

        Args:
            anchor: where the first one stands.
            start: its position; as many behind it as the steps can accept must be free.
            limit: most draft tokens that can be used, one behind the other.
            steps: to run.
        """
        self._mail.clear()
        self._stand(anchor, start, limit)
        for _ in range(steps):
            self._whole()

    def redraft(self, drafts: int) -> None:
        """Make the next draft so many times, if the lane makes any: for a clock."""
        if self._first is not None:
            for _ in range(drafts):
                self._first()

    def _ran(self) -> list[int]:
        """The report of one step of what was loaded."""
        self._mail.clear()
        self._whole()
        self._mail.send()
        return self._mail.receive()

    @abstractmethod
    def _stand(self, anchor: int, start: int, limit: int) -> None:
        """Load an anchor without a draft; arguments as of `begin`."""

    @abstractmethod
    def _verify(self) -> None:
        """Run the step."""

    @abstractmethod
    def _verify_and_draft(self) -> None:
        """Run the step, take in what it accepted, make the next draft."""

    @abstractmethod
    def _make_draft(self) -> None:
        """Make a draft where the step stands."""

    @abstractmethod
    def _read(self, numbers: Sequence[int], start: int) -> Checked:
        """What a report says of a step of the lane's own draft; arguments and errors as of `step`."""


class ChainLane(Lane):
    """Verifies chains."""

    def __init__(
        self, step: VerifyStep, draft: DraftProgram | None, graphs: Graphs, opening: Opening
    ) -> None:
        """As of `Lane`."""
        self._step, self._draft = step, draft
        super().__init__(step.report, draft, graphs, opening)

    def verify(self, token_ids: Sequence[int], start: int) -> Checked:
        """Verify a draft of the host.

        Args:
            token_ids: anchor and draft.
            start: position of the anchor.

        Raises:
            ValueError: the draft is longer than the step.
            RequestError: a logit is not a number.
        """
        if len(token_ids) > self._step.rows:
            raise ValueError(f"a draft of {len(token_ids) - 1} in a step of {self._step.rows} rows")
        self._step.load(token_ids, start, drafted=len(token_ids) - 1, limit=0)
        found = self._checked(self._step.read(self._ran()))
        self._step.forward.leave()
        return found

    def _stand(self, anchor: int, start: int, limit: int) -> None:
        drafts = 0 if self._draft is None else self._draft.drafts
        self._step.load((anchor,), start, drafted=min(drafts, limit), limit=limit)

    def _verify(self) -> None:
        self._step()

    @torch.inference_mode()
    def _verify_and_draft(self) -> None:
        step = self._step
        step()
        if self._draft is not None:
            self._draft.absorb(step.tapped, step.before + step.index, step.choices, step.accepted)
        self._make_draft()

    @torch.inference_mode()
    def _make_draft(self) -> None:
        step = self._step
        if self._draft is not None:
            step.ids[1 : 1 + self._draft.drafts].copy_(self._draft.draft(step.ids[:1], step.start))

    def _read(self, numbers: Sequence[int], start: int) -> Checked:
        report = self._step.read(numbers)
        hold_place(report.start, start)
        return self._checked(report)

    def _checked(self, report: Report) -> Checked:
        count = 1 + report.drafted
        hold_numbers(report.finite[:count])
        return Checked(
            tuple(report.token_ids[1:count]),
            report.choices[:count],
            self._step.logits[:count],
            self._step.tapped[:count],
            report.drafted,
        )


class TreeLane(Lane):
    """Verifies trees."""

    def __init__(self, step: TreeStep, draft: TreeProgram | None, graphs: Graphs, opening: Opening) -> None:
        """As of `Lane`."""
        self._step, self._draft = step, draft
        super().__init__(step.report, draft, graphs, opening)

    def verify(self, token_ids: Sequence[int], parents: Sequence[int], start: int) -> Checked:
        """Run a tree of the host; what is accepted is the host's to say, and to bring together in the cache.

        Args:
            token_ids: anchor and nodes.
            parents: row in front of each, -1 for the anchor.
            start: position of the anchor.

        Raises:
            ValueError: the tree has more rows than the step.
            RequestError: a logit is not a number.
        """
        count = len(token_ids)
        if count > self._step.rows:
            raise ValueError(f"a tree of {count - 1} nodes in a step of {self._step.rows} rows")
        self._step.load(token_ids, parents, start, limit=0)
        report = self._step.read(self._ran())
        self._step.forward.leave()
        hold_numbers(report.finite[:count])
        tokens, plain = tuple(token_ids[1:]), report.choices[:count]
        return Checked(tokens, plain, self._step.logits[:count], self._step.tapped[:count], count - 1)

    def _stand(self, anchor: int, start: int, limit: int) -> None:
        self._step.load((anchor,), (-1,), start, limit=limit)

    def _verify(self) -> None:
        self._step()

    @torch.inference_mode()
    def _verify_and_draft(self) -> None:
        self._step()
        if self._draft is not None:
            self._draft.absorb(*self._step.accepted_rows)
        self._make_draft()

    @torch.inference_mode()
    def _make_draft(self) -> None:
        if self._draft is not None:
            self._draft.plant(self._step.turn)

    def _read(self, numbers: Sequence[int], start: int) -> Checked:
        report, step = self._step.read(numbers), self._step
        hold_place(report.start, start)
        hold_numbers(report.finite[: 1 + report.drafted])
        path = report.path
        # Behind a step that was started ahead the rows are gone; nobody asks for them then.
        rows = slice(len(path)) if self._ahead else torch.tensor(path, device=step.logits.device)
        return Checked(
            tuple(report.token_ids[row] for row in path[1:]),
            [report.choices[row] for row in path],
            step.logits[rows],
            step.tapped[rows],
            report.drafted,
        )


def hold_place(device: int, host: int) -> None:
    """Hold that both stand at one position.

    Raises:
        ValueError: they do not.
    """
    if device != host:
        raise ValueError(f"the device stands at position {device}, the host at {host}")


def hold_numbers(finite: Sequence[int]) -> None:
    """Hold that every row's largest logit is a number.

    Raises:
        RequestError: one is none.
    """
    if not all(finite):
        raise RequestError(NO_NUMBERS)
