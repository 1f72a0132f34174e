"""A reference engine that stays up and decodes one request after another, as vLLM is asked to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter, StaticDrafter
from reference_mechanisms.drafters.replaying import ReplayedDrafter, draw_trace
from reference_mechanisms.engine.bench.single import single_engine
from reference_mechanisms.engine.bench.timing import Clock, decode_timed
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.weight12.plugin.step_times.steps import Call


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
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        """Make the engine; its steps are recorded by the first call.

        Args:
            target: the model.
            positions: of the longest request, prompt and output.
            drafter: runs whole in every step, its drafts replaced by a recording; None: nothing drafts.
            drafts: tokens of its draft.
            length: acceptance length of the recording.
            seed: of its traces.
            clock: tells nanoseconds.
        """
        self._target, self._drafts, self._length = target, drafts, length
        self._seed, self._clock = seed, clock
        graphs = Graphs(target.device)
        plain, self._autoregressive = single_engine(target, positions, 1, graphs)
        plain.driving((), None)
        self._drafted: tuple[Decoder, ReplayedDrafter] | None = None
        if drafter is not None:
            lanes, decoder = single_engine(target, positions, drafts + 1, graphs)
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
        drafter.record((*request.prompt, *known), draw_trace(self._length, self._drafts, output, self._seed))
        tokens, steps, wall = self._decode(decoder, drafter, request)
        if tokens != known:
            raise MechanismError("drafts changed a token of autoregressive decoding")
        return Call(batch=1, output=output, tokens=len(tokens), wall_s=wall, drafts=steps)

    def _decode(
        self, decoder: Decoder, drafter: Drafter, request: Request
    ) -> tuple[tuple[int, ...], int, float]:
        """Tokens, verify steps, seconds until the device is idle again."""
        began = self._clock()
        timed = decode_timed(decoder, drafter, request, self._clock)
        if self._target.device.type == "cuda":
            torch.cuda.synchronize(self._target.device)
        return timed.token_ids, len(timed.accepted), (self._clock() - began) / 1e9
