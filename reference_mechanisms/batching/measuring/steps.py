"""The pieces of a batched step, as they run in the loop: recorded steps, drafting, prompts, both at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from reference_mechanisms.batching.bucket_running import BucketRunner
from reference_mechanisms.batching.costs import StepCosts, bucket_shapes
from reference_mechanisms.batching.measuring.hosting import host_times, wait_for
from reference_mechanisms.batching.measuring.timing import Clock, Job, Piece, Told, table, time_in_turn
from reference_mechanisms.batching.overlapping import Beside
from reference_mechanisms.drafters.slot_drafting import SlotPrograms, SlotSizes
from reference_mechanisms.drafters.slot_programs import SlotDraftProgram
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.prompt_step import PIECE
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.slot_hybrid import SlotHybridCache
from reference_mechanisms.engine.slot_step import Shape
from reference_mechanisms.engine.target import Target

HOST_STEPS = 24
BETWEEN = 4  # shapes between two buckets, at most


class Subject(NamedTuple):
    """What is measured."""

    target: Target
    program: Callable[[int, int], SlotDraftProgram] | None  # slots, positions; None: nothing is drafted
    taps: tuple[int, ...]
    drafts: int  # of a request, at most; without a program they are those of the host


class Load(NamedTuple):
    """Under which it is measured."""

    slots: int  # requests at a time, at most
    context: int  # cached positions of each request
    rounds: int  # of which the medians are kept


class Steps:
    """Everything recorded."""

    def __init__(self, subject: Subject, load: Load, clock: Clock) -> None:
        """Record.

        Raises:
            TargetError: steps of fixed shape cannot run the target, or do not fit the device.
        """
        self._subject, self._load, self._clock = subject, load, clock
        target, most = subject.target, subject.drafts + 1
        self._capacity = load.context + max(most, HOST_STEPS * most + 2)
        self._device, self._vocabulary = target.device, target.config.vocab_size
        buckets = [Shape(*one) for one in bucket_shapes(load.slots, subject.drafts)]
        self._buckets, self._between = buckets, _between(buckets, load.slots)
        sizes = (load.slots, self._capacity, most, [*buckets, *self._between])
        self._runner = BucketRunner(target, *sizes, Graphs(target.device))
        self._runner.record(subject.taps)
        self._programs: SlotPrograms | None = None
        if subject.program is not None:
            program = subject.program(load.slots, self._capacity)
            width = len(subject.taps) * target.config.hidden_size
            like = torch.empty(0, dtype=target.dtype, device=target.device)
            slots = SlotSizes(load.slots, self._capacity, width)
            self._programs = SlotPrograms(program, slots, like, Graphs(target.device))

    @property
    def about(self) -> str:
        """How the steps run."""
        return self._runner.about

    def costs(self, told: Told) -> StepCosts:
        """Measure.

        Args:
            told: of progress, round by round.
        """
        times = time_in_turn(self.jobs(), self._load.rounds, self._clock, told)
        drafts = self._subject.drafts
        host = host_times(self._runner, self._capacity, drafts, HOST_STEPS, self._clock)
        return table({**times, Piece("host", ()): host[2:]})

    def jobs(self) -> list[Job]:
        """The pieces."""
        jobs = [Job(Piece("verify", tuple(one)), self._verifying(one)) for one in self._buckets]
        jobs += [Job(Piece("between", tuple(one)), self._verifying(one)) for one in self._between]
        jobs.append(Job(Piece("prefill", (PIECE,)), self._prefilling()))
        programs = self._programs
        if programs is None:
            return jobs
        requests = sorted({one.seats for one in self._buckets})
        lengths = [one for one in _lengths(self._subject.drafts) if one <= programs.program.drafts]
        jobs += [
            Job(Piece("draft", (count, length)), self._drafting(programs, count, length))
            for count in requests
            for length in lengths
        ]
        jobs.append(Job(Piece("catch up", ()), self._catching_up(programs)))
        if self._device.type == "cuda":
            halves = [one for one in self._buckets if one.seats <= max(1, self._load.slots // 2)]
            jobs += [
                Job(Piece("overlap", (*one, length)), self._overlapping(programs, one, length))
                for one in halves
                for length in lengths[-1:]
            ]
        return jobs

    def _verifying(self, shape: Shape) -> Callable[[], None]:
        """A step of a bucket used in full, and its choices in the host's hands."""
        rows = self._rows(shape)

        def work() -> None:
            ran = self._runner.run_in(shape, rows, self._subject.taps)
            ran.choices.tolist()
            ran.finite.tolist()
            self._keep(rows)

        return work

    def _keep(self, rows: Rows) -> None:
        """Of a step on a hybrid target the anchor and half of each draft go into the states; lengths stay."""
        cache = self._runner.cache
        if not isinstance(cache, SlotHybridCache):
            return
        for slot, _, count in rows.segments:
            cache.kv.mark(slot)
            cache.commit(slot, 1 + (count - 1) // 2)
            cache.kv.rewind(slot, 0)
        self._runner.model.settle()
        wait_for(self._device)

    def _rows(self, shape: Shape) -> Rows:
        start = self._load.context
        count = min(shape.rows, shape.seats * (self._subject.drafts + 1))
        parts = [count // shape.seats + (n < count % shape.seats) for n in range(shape.seats)]
        segments = [Segment(slot, start, part) for slot, part in enumerate(parts)]
        positions = [start + n for part in parts for n in range(part)]
        ids = [(7 + 7919 * n) % self._vocabulary for n in range(count)]
        return Rows(ids, positions, segments)

    def _prefilling(self) -> Callable[[], None]:
        start = max(0, self._load.context - PIECE)
        ids = [(3 + 7919 * n) % self._vocabulary for n in range(PIECE)]
        rows = Rows(ids, range(start, start + PIECE), (Segment(0, start, PIECE),))

        def work() -> None:
            self._runner.prefill(rows, self._subject.taps)
            wait_for(self._device)

        return work

    def _drafting(self, programs: SlotPrograms, requests: int, drafts: int) -> Callable[[], None]:
        """What was accepted is taken in, half of it; then a draft, in the host's hands."""
        rows = 1 + drafts // 2
        taking = self._taking(programs, [rows] * requests)
        places = [(slot, 1, self._load.context) for slot in range(requests)]

        def work() -> None:
            taking()
            made, _ = programs.draft(places, drafts)
            made.tolist()

        return work

    def _catching_up(self, programs: SlotPrograms) -> Callable[[], None]:
        rows = min(programs.rows, PIECE)
        taking = self._taking(programs, [rows])

        def work() -> None:
            taking()
            wait_for(self._device)

        return work

    def _taking(self, programs: SlotPrograms, counts: Sequence[int]) -> Callable[[], None]:
        total = sum(counts)
        like = self._subject.target
        taps = torch.zeros((total, programs.sizes.width), dtype=like.dtype, device=like.device)
        places = [(slot, max(0, self._load.context - count), count) for slot, count in enumerate(counts)]
        following = [1] * total

        def work() -> None:
            programs.absorb(taps, following, places)

        return work

    def _overlapping(self, programs: SlotPrograms, shape: Shape, drafts: int) -> Callable[[], None]:
        """A verify step with the drafting of other slots at its side."""
        rows, taps, beside = self._rows(shape), self._subject.taps, Beside(self._device)
        first = self._load.slots - shape.seats
        places = [(first + slot, 1, self._load.context) for slot in range(shape.seats)]

        def work() -> None:
            ran = self._runner.run_in(shape, rows, taps)
            with beside:
                made, _ = programs.draft(places, drafts)
            made.tolist()
            ran.choices.tolist()
            self._keep(rows)

        return work


def _lengths(drafts: int) -> list[int]:
    """Draft lengths that are recorded, as `SlotPrograms` has them."""
    shorter = (1 << power for power in range(drafts.bit_length()))
    return sorted({drafts, *(one for one in shorter if one < drafts)} - {0})


def _between(buckets: Sequence[Shape], requests: int) -> list[Shape]:
    """Shapes half way between two buckets of the most requests, recorded unpadded: what padding costs."""
    rows = sorted(one.rows for one in buckets if one.seats == requests)
    pairs = [(low + high) // 2 for low, high in itertools.pairwise(rows) if high - low > 1]
    chosen = pairs[:: max(1, -(-len(pairs) // BETWEEN))]
    return [Shape(requests, one) for one in chosen if Shape(requests, one) not in buckets]
