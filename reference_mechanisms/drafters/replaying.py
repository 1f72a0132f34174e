"""`replay` acceptance: a drafter's whole forward runs, then a recording says what is accepted of it.

For targets with dummy weights, whose drafters guess nothing right. The right tokens are the target's own
greedy continuation, known from a run before; a wrong one follows as many of them as the trace asks for.
So the engine verifies, accepts and commits as ever, and what it emits is still checked. Such a run is of
the "system" division: it measures an engine under an acceptance, and says nothing of a drafter.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from reference_mechanisms.drafters.protocol import DraftProgram, Proposal, StaticDrafter, Wanted
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.kernels.step.choice import kernels_for
from reference_mechanisms.kernels.step.replaying import new_recording
from reference_mechanisms.request import Request

HEAD_DIM = 128  # the choice of kernels asks for one; replaying has no part in attention


class ReplayedProgram:
    """Runs a drafter's program whole and hands on the recording instead."""

    def __init__(
        self, inner: DraftProgram, vocab_size: int, positions: int, steps: int, device: torch.device
    ) -> None:
        """Take buffers for sequences of so many positions, and for so many steps."""
        self.drafts = inner.drafts
        self._inner, self._vocab_size = inner, vocab_size
        self._recording = new_recording(positions, steps, device)
        self._out = torch.zeros(inner.drafts, dtype=torch.int64, device=device)
        self._replay = kernels_for(device, torch.bfloat16, HEAD_DIM).replay

    @torch.inference_mode()
    def record(self, tokens: Sequence[int], counts: Sequence[int]) -> None:
        """What the next request does.

        Args:
            tokens: prompt and the target's own continuation.
            counts: draft tokens that each step shall accept.

        Raises:
            DrafterError: they are longer than the buffers.
        """
        for place, given in ((self._recording.tokens, tokens), (self._recording.counts, counts)):
            if len(given) > len(place):
                raise DrafterError(f"a recording of {len(given)} in a buffer of {len(place)}")
            place.zero_()
            place[: len(given)].copy_(torch.tensor(given))
        self._recording.turn.zero_()

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """As in `protocol.DraftProgram`."""
        self._inner.absorb(taps, positions, following, last)

    @torch.inference_mode()
    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """As in `protocol.DraftProgram`."""
        made = self._inner.draft(anchor, start)
        self._replay(made, start, self._recording, self._vocab_size, self._out)
        return self._out


class ReplayedDrafter:
    """`protocol.StaticDrafter` whose program is replayed; it has one program, for one engine."""

    def __init__(self, inner: StaticDrafter | int, vocab_size: int, steps: int, device: torch.device) -> None:
        """Replay traces of at most so many steps, of a drafter or of so many tokens that nothing drafts."""
        self._inner, self._vocab_size = inner, vocab_size
        self._steps, self._device = steps, device
        self.made: ReplayedProgram | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """As in `protocol.ContextDrafter`."""
        return () if isinstance(self._inner, int) else self._inner.taps

    @property
    def key(self) -> Hashable:
        """As in `protocol.StaticDrafter`."""
        return id(self)

    def record(self, tokens: Sequence[int], counts: Sequence[int]) -> None:
        """What the next request does, as in `ReplayedProgram.record`.

        Raises:
            DrafterError: they are longer than the buffers, or there is no program yet.
        """
        if self.made is None:
            raise DrafterError("the drafter's program is not recorded yet")
        self.made.record(tokens, counts)

    def program(self, positions: int) -> DraftProgram:
        """As in `protocol.StaticDrafter`."""
        inner: DraftProgram = (
            BlankProgram(self._inner, self._device)
            if isinstance(self._inner, int)
            else self._inner.program(positions)
        )
        self.made = ReplayedProgram(inner, self._vocab_size, positions, self._steps, self._device)
        return self.made

    def begin(self, slot: int, request: Request) -> None:
        """Refused: see `propose`."""
        del slot, request
        self.propose(())

    def extend(self, slot: int, taps: Tensor) -> None:
        """Refused: see `propose`."""
        del slot, taps
        self.propose(())

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        """Refused.

        Raises:
            DrafterError: always; a recording is replayed on the device alone.
        """
        del wanted
        raise DrafterError("replay acceptance serves single greedy requests in steps of fixed shape only")


class BlankProgram:
    """`protocol.DraftProgram` that does no work: under a recording, the verify step alone is timed."""

    def __init__(self, drafts: int, device: torch.device) -> None:
        """Draft so many zeros."""
        self.drafts = drafts
        self._zeros = torch.zeros(drafts, dtype=torch.int64, device=device)

    def absorb(self, taps: Tensor, positions: Tensor, following: Tensor, last: Tensor) -> None:
        """Nothing is kept."""
        del taps, positions, following, last

    def draft(self, anchor: Tensor, start: Tensor) -> Tensor:
        """Zeros."""
        del anchor, start
        return self._zeros


def chance_of(length: float, drafts: int) -> float:
    """The chance of a draft token to be accepted, once all before it are, that gives an acceptance length.

    Args:
        length: mean tokens of a step, the bonus token included; 1 to drafts + 1.
        drafts: tokens of a draft.

    Raises:
        DrafterError: no chance gives this length.
    """
    if not 1 <= length <= drafts + 1:
        raise DrafterError(f"acceptance length {length} with drafts of {drafts}: give 1 to {drafts + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = sum(middle**n for n in range(drafts + 1))
        low, high = (middle, high) if reached < length else (low, middle)
    return high


def draw_trace(length: float, drafts: int, output: int, seed: int) -> tuple[int, ...]:
    """Accepted counts of the steps of one request, drawn with the chance that gives `length` on average.

    Args:
        length: mean tokens of a step over many requests.
        drafts: tokens of a draft.
        output: tokens of the request; the first is the prefill's.
        seed: of this request.
    """
    chance, rng = chance_of(length, drafts), random.Random(seed)  # noqa: S311 - no secret
    counts: list[int] = []
    emitted = 1
    while emitted < output:
        count = 0
        while count < drafts and rng.random() < chance:
            count += 1
        counts.append(count)
        emitted += count + 1
    return tuple(counts)
