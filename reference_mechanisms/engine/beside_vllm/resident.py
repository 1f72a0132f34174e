"""A reference engine that stays up and decodes one request after another, as vLLM is asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter, StaticDrafter
from reference_mechanisms.drafters.replaying import ReplayedDrafter, draw_trace
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.weight12.plugin.step_times.steps import Call

Clock = Callable[[], float]  # seconds


class Resident:
    """One target, decoded autoregressively or with replayed drafts."""

    def __init__(
        self,
        target: LlamaTarget,
        positions: int,
        *,
        drafter: StaticDrafter | None = None,
        drafts: int = 0,
        length: float = 1.0,
        seed: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Make the engine; its steps are recorded by the first call.

        Args:
            target: the model.
            positions: of the longest request, prompt and output.
            drafter: runs whole in every step, its drafts replaced by a recording; None: nothing drafts.
            drafts: tokens of its draft.
            length: acceptance length of the recording.
            seed: of its traces.
            clock: tells seconds.
        """
        self._target, self._length, self._seed, self._clock = target, length, seed, clock
        graphs = Graphs(target.device)
        self._plain, self._autoregressive = _engine(target, positions, 1, graphs)
        self._plain.driving((), None)
        self._drafted: tuple[Decoder, ReplayedDrafter] | None = None
        if drafter is not None:
            lanes, decoder = _engine(target, positions, drafts + 1, graphs)
            replayed = ReplayedDrafter(drafter, target.config.vocab_size, positions + 2, target.device)
            lanes.driving(replayed.taps, replayed)
            self._drafted = (decoder, replayed)

    def call(self, prompts: Sequence[Sequence[int]], output: int) -> Call:
        """Decode one request and take its time; the continuation that drafts replay is found before.

        Args:
            prompts: one, of token ids.
            output: tokens to emit.

        Raises:
            MechanismError: it is not one prompt, or drafts changed a token.
        """
        if len(prompts) != 1:
            raise MechanismError(f"{len(prompts)} prompts; this engine's steps are of one request")
        request = Request(name="timed", prompt=tuple(prompts[0]), sampling=Sampling(max_tokens=output))
        if self._drafted is None:
            tokens, _, wall = self._decode(self._autoregressive, NoDrafter(), request)
            return Call(batch=1, output=output, tokens=len(tokens), wall_s=wall)
        known, _, _ = self._decode(self._autoregressive, NoDrafter(), request)
        decoder, drafter = self._drafted
        self._seed += 1
        self._record(drafter, (*request.prompt, *known), output)
        tokens, steps, wall = self._decode(decoder, drafter, request)
        if tokens != known:
            raise MechanismError("drafts changed a token of autoregressive decoding")
        return Call(batch=1, output=output, tokens=len(tokens), wall_s=wall, drafts=steps)

    def _record(self, drafter: ReplayedDrafter, tokens: Sequence[int], output: int) -> None:
        if drafter.made is None:
            raise MechanismError("the drafter's program is not recorded")
        drafter.made.record(tokens, draw_trace(self._length, drafter.made.drafts, output, self._seed))

    def _decode(self, decoder: Decoder, drafter: Drafter, request: Request) -> tuple[list[int], int, float]:
        """Tokens, verify steps, seconds."""
        tokens: list[int] = []
        steps = 0
        began = self._clock()
        for event in decoder.stream([request], drafter):
            tokens.extend(event.token_ids)
            steps += event.kind == "step"
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
        return tokens, steps, self._clock() - began


def _engine(target: LlamaTarget, positions: int, rows: int, graphs: Graphs) -> tuple[Lanes, Decoder]:
    lanes = Lanes(target, positions, Static(rows, graphs))
    return lanes, Decoder(target, (), _no_text, positions, lanes=lanes)


def _no_text(ids: Sequence[int]) -> str:
    """Tokens of dummy weights say nothing."""
    del ids
    return ""
