"""Single requests on static steps: the programs of a decoder, and the host's side of them.

A lane is a verify step, and where the drafter can run so too, the drafter's next draft behind it, as one
program. Such a lane drives itself: the host starts a step before it has read the one in front, so the
device never waits. Any other drafter is asked on the host and its draft loaded into the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import DraftProgram, StaticDrafter
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.choices import NO_NUMBERS
from reference_mechanisms.engine.graphs import Graphs, free_bytes, hold_fit
from reference_mechanisms.engine.mail import Mail
from reference_mechanisms.engine.prompt_step import PIECE, PromptStep
from reference_mechanisms.engine.static_step import Report, VerifyStep
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import RequestError, TargetError
from reference_mechanisms.kernels.step.choice import kernels_for
from reference_mechanisms.targets.llama import LlamaTarget

PROMPT_ROWS = 256  # prompt positions that a drafter takes in at a time


class Static(NamedTuple):
    """How single requests are stepped."""

    rows: int  # of every verify step
    graphs: Graphs
    ahead: int | None = None  # steps started before one is read, at most 1; None: 1 on CUDA, else 0


class Checked(NamedTuple):
    """One verify step, as far as it counts."""

    draft: tuple[int, ...]
    plain: list[int]  # argmax of each row
    logits: Tensor  # [1 + drafted, vocabulary], until the next step starts
    tapped: Tensor  # [1 + drafted, taps x hidden], until the next step


class Lane:
    """The programs of one kind of drafter; one request at a time."""

    def __init__(self, step: VerifyStep, draft: DraftProgram | None, static: Static) -> None:
        """Record the programs; the cache may hold no sequence meanwhile."""
        self._step, self._draft, graphs = step, draft, static.graphs
        self._mail = Mail(step.report)
        self._most_ahead = int(step.report.is_cuda) if static.ahead is None else static.ahead
        self._ahead = 0
        step.load((0,), 0, drafted=0, limit=0)
        self._first = None if draft is None else graphs.program(self._make_draft)
        self._whole = graphs.program(step if draft is None else self._verify_and_draft)

    def begin(
        self, prompt: Sequence[int], tapped: Tensor, anchor: int, limit: int, *, ahead: bool = False
    ) -> None:
        """Stand behind a prompt that the cache holds, to drive itself from here.

        Args:
            prompt: its tokens.
            tapped: tapped hidden states of its positions, [positions, taps x hidden].
            anchor: the first token behind it.
            limit: most draft tokens that can be used.
            ahead: start a step before the one in front of it is read; its logits are then lost.
        """
        drafts = 0 if self._draft is None else self._draft.drafts
        self._mail.clear()
        self._ahead = self._most_ahead if ahead else 0
        self._step.load((anchor,), len(prompt), drafted=min(drafts, limit), limit=limit)
        if self._draft is None or self._first is None:
            return
        device = self._step.state.device
        following = torch.tensor([*prompt[1:], anchor], device=device)
        for first in range(0, len(prompt), PROMPT_ROWS):
            piece = slice(first, first + PROMPT_ROWS)
            rows = tapped[piece]
            positions = torch.arange(first, first + len(rows), device=device)
            last = positions[-1:] - first
            self._draft.absorb(rows, positions, following[piece], last)
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
        report = self._step.read(self._mail.receive())
        if report.start != start:
            raise ValueError(f"the device stands at position {report.start}, the host at {start}")
        return self._checked(report)

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
        self._mail.clear()
        self._step.load(token_ids, start, drafted=len(token_ids) - 1, limit=0)
        self._whole()
        self._mail.send()
        return self._checked(self._step.read(self._mail.receive()))

    def _checked(self, report: Report) -> Checked:
        count = 1 + report.drafted
        if not all(report.finite[:count]):
            raise RequestError(NO_NUMBERS)
        return Checked(
            tuple(report.token_ids[1:count]),
            report.choices[:count],
            self._step.logits[:count],
            self._step.tapped[:count],
        )

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


def positions_of(capacity: int, rows: int) -> int:
    """Positions of the cache for requests of so many, in steps of so many rows.

    A step may begin at the last position, and the next one's padding behind its end, or a prompt's.
    """
    return capacity + max(2 * rows, PIECE)


class Lanes:
    """The lanes of one target; they share a cache, and decode one request at a time."""

    def __init__(self, target: Target, capacity: int, static: Static) -> None:
        """Allocate the cache.

        Args:
            target: the model.
            capacity: most positions of a request.
            static: how to step.

        Raises:
            TargetError: the cache does not fit the device, or the target is not one for fixed shapes.
        """
        if not isinstance(target, LlamaTarget):
            raise TargetError(
                "steps of fixed shape need a target with attention layers only, and this one has recurrent "
                "layers; give the arm graphs = false"
            )
        self._target, self._static = target, static
        self.rows = static.rows
        self._positions = positions_of(capacity, static.rows)
        config = target.config
        numbers = config.layers * 2 * config.kv_heads * self._positions * config.head_dim
        hold_fit(numbers * target.dtype.itemsize, target.device, "keys and values of one request")
        self.cache: KVCache = target.new_cache(1, self._positions)
        self.kernels = kernels_for(target.device, target.dtype, config.head_dim)
        self._lanes: dict[Hashable, Lane] = {}
        self._prompts: dict[tuple[int, ...], PromptStep] = {}
        self._holder: object = None

    @property
    def about(self) -> str:
        """One line for the report."""
        how = "CUDA graphs" if self._static.graphs.records else "no graphs"
        return f"single requests in {self._static.rows} rows, {how}, {self.kernels.name} kernels"

    def take(self, holder: object) -> None:
        """A request begins; the one before it is over, whether it had ended or not."""
        self._holder = holder

    def hold(self, holder: object) -> None:
        """Refuse to go on with a request that another one has replaced.

        Raises:
            RequestError: it was replaced.
        """
        if holder is not self._holder:
            raise RequestError("another request took the place of this one before it had ended")

    def checking(self, taps: Sequence[int]) -> Lane:
        """The lane for drafts of the host, which need these layers.

        Raises:
            TargetError: it does not fit the device.
        """
        return self._found(tuple(taps), None, None)

    def driving(self, taps: Sequence[int], drafter: StaticDrafter | None) -> Lane:
        """The lane that makes its own drafts; without a drafter it decodes autoregressively.

        Raises:
            TargetError: it does not fit the device.
        """
        return self._found(tuple(taps), None if drafter is None else drafter.key, drafter)

    def prefill(self, prompt: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cache a prompt; see `PromptStep`.

        Raises:
            TargetError: the program does not fit the device.
        """
        key = tuple(taps)
        if key not in self._prompts:
            with self._fitting():
                self._prompts[key] = PromptStep(
                    self._target, self.cache, key, self.kernels, self._static.graphs
                )
        return self._prompts[key](prompt)

    def _found(self, taps: tuple[int, ...], key: Hashable, drafter: StaticDrafter | None) -> Lane:
        if (taps, key) not in self._lanes:
            with self._fitting():
                self._lanes[taps, key] = self._made(taps, drafter)
        return self._lanes[taps, key]

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            device = self._target.device
            raise TargetError(
                f"the device has too little memory for the steps of a single request: "
                f"{free_bytes(device)} bytes are free; lower the deployment's context_length or give "
                f"the arm graphs = false"
            ) from None

    def _made(self, taps: tuple[int, ...], drafter: StaticDrafter | None) -> Lane:
        draft = None if drafter is None else drafter.program(self._positions)
        step = VerifyStep(
            self._target,
            self.cache,
            rows=self._static.rows,
            drafts=0 if draft is None else draft.drafts,
            taps=taps,
            kernels=self.kernels,
        )
        return Lane(step, draft, self._static)
