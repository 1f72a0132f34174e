"""Drafters with weights, as the engine sees them: context in, proposals out, for ragged batches."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.context import ContextAttention, Span, commit, new_context
from reference_mechanisms.drafters.dflash import DFlash, Head
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.fusing import fusable, fused_program
from reference_mechanisms.drafters.levels import LEVEL_WIDTH, LevelForwards
from reference_mechanisms.drafters.picking import Drawing, Picker, Uniform
from reference_mechanisms.drafters.planting import Planting, planter_of
from reference_mechanisms.drafters.protocol import DraftProgram, Proposal, TreeProgram, Wanted
from reference_mechanisms.drafters.scheduling import Lengths, confidences_of
from reference_mechanisms.drafters.static import BlockProgram, ChainProgram
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.request import Request
from reference_mechanisms.sampling import request_key, uniform
from reference_mechanisms.verification.budgeting import Costs, paying
from reference_mechanisms.verification.calibrating import MISSED, Calibrated, Calibration, Judged
from reference_mechanisms.verification.growing import Branching, grow, trees_of


class Ends(NamedTuple):
    """What a drafter borrows of the target, unless its checkpoint holds its own."""

    embed: Head  # ids [...] -> [..., hidden]
    head: Head  # normed rows [..., hidden] -> logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How drafts are made."""

    drafts: int  # draft tokens a step
    sampled: bool = False  # draw drafts at temperature above 0; else the best token, a point mass
    lengths: Lengths | None = None  # how many to verify, from the confidences; None: all
    temperatures: tuple[float, ...] = ()  # of the confidences, one for each draft
    tree: int | None = None  # nodes of a draft tree of `drafts` levels, at most; None: chains
    calibration: Calibration | None = None  # what children are worth; None: what the drafter says
    costs: Costs | None = None  # of steps, which choose how many nodes pay; None: all
    nodes: Lengths | None = None  # path probabilities of all trees -> nodes of each to verify; None: all
    random: Uniform = uniform

    def __post_init__(self) -> None:
        """Refuse what a tree cannot be combined with.

        Raises:
            ValueError: a tree whose tokens are drawn, or whose depth hangs on confidences.
        """
        if self.tree is not None and (self.sampled or self.lengths is not None):
            raise ValueError("a `tree` holds the best tokens: it takes neither `sampled` nor `lengths`")
        if self.tree is None and (self.calibration, self.costs, self.nodes) != (None, None, None):
            raise ValueError("`calibration`, `costs` and `nodes` are of a `tree`")

    @property
    def room(self) -> int:
        """Positions of a running draft behind the committed ones."""
        return self.drafts + 1 if self.tree is None else self.drafts * min(self.tree, LEVEL_WIDTH) + 1


@dataclass(slots=True, kw_only=True)
class _Slot:
    request: Request
    key: int
    context: KVCache
    pending: list[Tensor] = dataclasses.field(default_factory=list)  # taps not yet in the context

    def new_taps(self) -> Tensor:
        """Take the waiting taps, [rows, taps x target hidden]."""
        taken = torch.cat(self.pending) if self.pending else torch.empty(0)
        self.pending.clear()
        return taken


class _Draft(NamedTuple):
    token_ids: Tensor  # [requests, drafts]
    confidence_logits: Tensor | None


class TrainedDrafter(ABC):
    """What all drafters with weights share; one object drafts for one batch."""

    def __init__(self, model: DFlash | Eagle3, taps: tuple[int, ...], ends: Ends, drafting: Drafting) -> None:
        """Draft with `model`, which lies on the target's device in the target's type."""
        self.taps = taps
        weight = model.fc.weight
        self._dtype, self._device = weight.dtype, weight.device
        self._embed: Head = ends.embed if model.embed_tokens is None else model.embed_tokens
        self._head: Head = ends.head if model.lm_head is None else model.lm_head
        self._network = model
        self._sizes, self._reaches = model.config.sizes, model.config.reaches
        self._vocab_size = model.config.vocab_size
        self._drafting = drafting
        self._slots: dict[int, _Slot] = {}

    @property
    def key(self) -> Hashable | None:
        """What makes the drafts of greedy requests; None where the host has a part in them."""
        one = self._drafting
        if one.lengths is not None or one.costs is not None or one.nodes is not None:
            return None
        return (self._network, one.drafts, one.tree, one.calibration)

    @property
    def nodes(self) -> int | None:
        """As in `protocol.PlantingDrafter`."""
        return self._drafting.tree

    def program(self, positions: int) -> DraftProgram:
        """As in `protocol.StaticDrafter`."""
        ends, drafts = (self._embed, self._head), self._drafting.drafts
        if isinstance(self._network, Eagle3):
            return ChainProgram(self._network, *ends, drafts, positions)
        if fusable(self._network):
            return fused_program(self._network, *ends, drafts, positions)
        return BlockProgram(self._network, *ends, drafts, positions)

    def planter(self, positions: int) -> TreeProgram:
        """As in `protocol.PlantingDrafter`.

        Raises:
            ValueError: it drafts chains.
        """
        if self._drafting.tree is None:
            raise ValueError("a drafter of chains plants no tree")
        planting = Planting(self._drafting.drafts, self._drafting.tree, self._drafting.calibration)
        return planter_of(self._network, (self._embed, self._head), planting, positions)

    def begin(self, slot: int, request: Request) -> None:
        """An empty context."""
        capacity = len(request.prompt) + request.sampling.max_tokens + self._drafting.room
        self._slots[slot] = _Slot(
            request=request,
            key=request_key(request.sampling.seed, request.prompt),
            context=new_context(self._sizes, len(self._reaches), capacity, self._dtype, self._device),
        )

    def extend(self, slot: int, taps: Tensor) -> None:
        """Positions of a request were committed; [rows, taps x target hidden]."""
        self._slots[slot].pending.append(taps)

    def mark(self, slot: int) -> None:
        """As in `protocol.RevocableDrafter`."""
        self._slots[slot].context.mark(0)

    def rewind(self, slot: int) -> None:
        """As in `protocol.RevocableDrafter`."""
        one = self._slots[slot]
        one.pending.clear()
        one.context.rewind(0, 0)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """One proposal for each, in order."""
        self._absorb(wanted)
        for one in wanted:
            slot = self._slots[one.slot]
            known, behind = slot.context.length(0), len(slot.request.prompt) + len(one.token_ids) - 1
            if known != behind:
                raise ValueError(f"slot {one.slot}: context of {known} positions, the anchor is at {behind}")
        asked = [one for one in wanted if one.limit > 0]
        if not asked:
            return [Proposal(()) for _ in wanted]
        if self._drafting.tree is not None:
            planted = self._trees(asked, self._drafting.tree)
            return [planted.get(one.slot, Proposal(())) for one in wanted]
        picker = Picker([self._drawing(one) for one in asked], self._vocab_size, self._drafting.random)
        made = self._draft(asked, picker)
        lengths = self._lengths(asked, made)
        found = {
            one.slot: Proposal(tuple(ids[:length]), picker.probabilities(row, length))
            for row, (one, ids, length) in enumerate(
                zip(asked, made.token_ids.tolist(), lengths, strict=True)
            )
        }
        return [found.get(one.slot, Proposal(())) for one in wanted]

    def _trees(self, asked: Sequence[Wanted], budget: int) -> dict[int, Proposal]:
        """The best tree of each request, by its slot."""
        branching, drafting = self._branching(asked, budget), self._drafting
        if drafting.calibration is not None:
            branching = Calibrated(branching, drafting.calibration.numbers(drafting.drafts, self._device))
        grown = grow(
            branching,
            self._anchors(asked),
            budget=budget,
            depths=[min(self._drafting.drafts, one.limit) for one in asked],
            width=LEVEL_WIDTH if isinstance(self._network, Eagle3) else None,
        )
        trees = trees_of(grown)
        if drafting.costs is not None:
            trees = [paying(tree, drafting.costs) for tree in trees]
        if drafting.nodes is not None:
            counts = drafting.nodes([tree.path_probabilities for tree in trees])
            trees = [tree.first(count) for tree, count in zip(trees, counts, strict=True)]
        return {
            one.slot: Proposal(tree.token_ids, parents=tree.parents)
            for one, tree in zip(asked, trees, strict=True)
        }

    @torch.inference_mode()
    def judged(self, one: Wanted, truth: Sequence[int], count: int) -> list[Judged]:
        """Where the target's own tokens stand among the candidates of each position behind the ones before.

        Args:
            one: a request.
            truth: what the target says behind the anchor, no longer than a draft.
            count: candidates.

        Returns:
            Positions up to the first whose token is not among the candidates, `MISSED`.
        """
        self._absorb([one])
        branching, found = self._branching([one], count), list[Judged]()
        before = self._anchors([one])[:, None]
        for depth, token in enumerate(truth):
            ids, scores = branching.children(depth, before, torch.zeros_like(before))
            candidates = ids[0, 0, :count].tolist()
            rank = candidates.index(token) if token in candidates else MISSED
            found.append(Judged(scores[0, 0, :count].float().cpu(), rank))
            if rank == MISSED:
                break
            before = torch.full_like(before, token)
        return found

    def _anchors(self, asked: Sequence[Wanted]) -> Tensor:
        return torch.tensor([one.token_ids[-1] for one in asked], device=self._device)

    @abstractmethod
    def _absorb(self, wanted: Sequence[Wanted]) -> None:
        """Move the waiting taps of these requests into their contexts."""

    @abstractmethod
    def _draft(self, asked: Sequence[Wanted], picker: Picker) -> _Draft:
        """Choose `drafts` tokens for each request."""

    @abstractmethod
    def _branching(self, asked: Sequence[Wanted], count: int) -> Branching:
        """What may follow what, with up to `count` children of a node."""

    def _drawing(self, one: Wanted) -> Drawing:
        slot = self._slots[one.slot]
        temperature = slot.request.sampling.temperature if self._drafting.sampled else 0.0
        return Drawing(slot.request.name, temperature, slot.key, len(one.token_ids))

    def _lengths(self, asked: Sequence[Wanted], made: _Draft) -> list[int]:
        most = [min(self._drafting.drafts, one.limit) for one in asked]
        if self._drafting.lengths is None or made.confidence_logits is None:
            return most
        found = confidences_of(made.confidence_logits, self._drafting.temperatures).tolist()
        return self._drafting.lengths([one[:length] for one, length in zip(found, most, strict=True)])


class BlockDrafter(TrainedDrafter):
    """DFlash, DFlash 2 and DSpark."""

    def __init__(self, model: DFlash, ends: Ends, drafting: Drafting) -> None:
        """Draft with `model`."""
        super().__init__(model, model.config.taps, ends, drafting)
        self._model = model
        self._rows = model.config.rows(drafting.drafts)

    def _absorb(self, wanted: Sequence[Wanted]) -> None:
        waiting = [self._slots[one.slot] for one in wanted if self._slots[one.slot].pending]
        if not waiting:
            return
        taps = [slot.new_taps() for slot in waiting]
        starts = [slot.context.length(0) for slot in waiting]
        counts = [len(one) for one in taps]
        positions = torch.cat(
            [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        layers = self._model.context(torch.cat(taps), positions.to(self._device))
        for number, slot in enumerate(waiting):
            first = sum(counts[:number])
            mine = slice(first, first + counts[number])
            commit(slot.context, [(keys[mine], values[mine]) for keys, values in layers])

    def _draft(self, asked: Sequence[Wanted], picker: Picker) -> _Draft:
        return _Draft(*self._model.draft(self._predicting(asked), self._anchors(asked), self._head, picker))

    def _branching(self, asked: Sequence[Wanted], count: int) -> Branching:
        return self._model.branching(self._predicting(asked), self._head, count)

    def _predicting(self, asked: Sequence[Wanted]) -> Tensor:
        """Final hidden states of the predicting rows, [requests, drafts, hidden]."""
        contexts = [self._slots[one.slot].context for one in asked]
        starts = torch.tensor([context.length(0) for context in contexts], device=self._device)
        anchors = self._anchors(asked)
        ids = anchors.new_full((len(asked), self._rows), self._model.config.mask_token)
        ids[:, 0] = anchors
        spans = [Span(context, context.length(0), self._rows) for context in contexts]
        hidden = self._model.hidden(
            self._embed(ids),
            starts[:, None] + torch.arange(self._rows, device=self._device),
            ContextAttention(spans, self._reaches, self._device),
        )
        return hidden if self._model.config.anchor_row else hidden[:, 1:]


class ChainDrafter(TrainedDrafter):
    """EAGLE-3."""

    def __init__(self, model: Eagle3, taps: tuple[int, ...], ends: Ends, drafting: Drafting) -> None:
        """Draft with `model`, tapping `taps`."""
        super().__init__(model, taps, ends, drafting)
        self._model = model
        self._newest: dict[int, Tensor] = {}  # output row of the last committed position, [hidden]

    def _absorb(self, wanted: Sequence[Wanted]) -> None:
        waiting = [one for one in wanted if self._slots[one.slot].pending]
        if not waiting:
            return
        features: list[Tensor] = []
        ids: list[int] = []
        spans: list[Span] = []
        for one in waiting:
            slot = self._slots[one.slot]
            fused = self._model.fuse(slot.new_taps())
            start, text = slot.context.length(0), (*slot.request.prompt, *one.token_ids)
            features.append(fused)
            ids += text[start + 1 : start + 1 + len(fused)]
            spans.append(Span(slot.context, start, len(fused)))
        outputs = self._step(torch.cat(features), ids, spans)
        last = 0
        for one, span in zip(waiting, spans, strict=True):
            last += span.rows
            span.context.commit(0, span.rows)
            self._newest[one.slot] = outputs[last - 1]

    def _draft(self, asked: Sequence[Wanted], picker: Picker) -> _Draft:
        contexts = [self._slots[one.slot].context for one in asked]
        outputs = torch.stack([self._newest[one.slot] for one in asked])
        target_ids = self._model.target_ids(self._device)
        chosen: list[Tensor] = []
        for index in range(self._drafting.drafts):
            if index:
                spans = [Span(context, context.length(0) + index - 1, 1) for context in contexts]
                outputs = self._step(self._model.handed_on(outputs), chosen[-1].tolist(), spans)
            chosen.append(picker(index, self._head(self._model.normed(outputs)), target_ids))
        return _Draft(torch.stack(chosen, dim=1), None)

    def _branching(self, asked: Sequence[Wanted], count: int) -> Branching:
        contexts = [self._slots[one.slot].context for one in asked]
        newest = torch.stack([self._newest[one.slot] for one in asked])
        return LevelForwards(self._model, self._embed, self._head, contexts, newest, count)

    def _step(self, features: Tensor, ids: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """Output rows for features [rows, hidden] and the tokens behind them."""
        positions = torch.cat([torch.arange(span.start, span.start + span.rows) for span in spans])
        outputs: Tensor = self._model(
            features,
            self._embed(torch.tensor(ids, device=self._device)),
            positions.to(self._device),
            ContextAttention(spans, self._reaches, self._device),
        )
        return outputs
