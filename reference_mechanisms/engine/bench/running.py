"""Decode requests on one engine, autoregressively and with replayed drafts; hold both to the same bits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter, StaticDrafter
from reference_mechanisms.drafters.replaying import ReplayedDrafter, draw_trace
from reference_mechanisms.engine.bench.keeping import Kept
from reference_mechanisms.engine.bench.single import single_engine
from reference_mechanisms.engine.bench.timing import Timed, decode_timed, middle
from reference_mechanisms.engine.bench.waterfall import record, waterfall
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.kernels.step.twin import WAYS, Ways
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget

TOLD = 10  # requests between two words about a long comparison
PROFILED = 60  # tokens of a request that is profiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is decoded."""

    prompt: int  # tokens
    output: int
    requests: int
    seed: int
    acceptance_length: float  # of replayed drafts
    timed: int = 4  # requests whose times are taken, at most; the logits of all are compared

    @property
    def positions(self) -> int:
        """Of a request."""
        return self.prompt + self.output


class Known(NamedTuple):
    """What a request must give."""

    token_ids: tuple[int, ...]
    logits_sha256: str | None


class Bench:
    """One target and the requests it is timed on."""

    def __init__(
        self,
        target: LlamaTarget,
        load: Load,
        say: Callable[[str], None],
        kept: Kept | None = None,
        ways: Ways = WAYS,
    ) -> None:
        """Draw the prompts.

        Args:
            target: the model.
            load: what to decode.
            say: tells how far it is.
            kept: of this target in its format; None: every request is decoded anew.
            ways: of the kernels.
        """
        self._target, self._load, self._say, self._ways = target, load, say, ways
        self._kept = kept or Kept(None, {})
        vocabulary = target.config.vocab_size
        rng = random.Random(load.seed)  # noqa: S311 - no secret
        self._prompts = [
            tuple(rng.randrange(vocabulary) for _ in range(load.prompt)) for _ in range(load.requests)
        ]
        self._graphs = Graphs(target.device)
        self._known: dict[int, Known] = {}  # autoregressive, with its logits hashed
        self._newest: tuple[Decoder, Drafter] | None = None  # what was timed last

    def autoregressive(self) -> dict[str, Any]:
        """Steps of one row."""
        lanes, decoder = single_engine(self._target, self._load.positions, 1, self._graphs, self._ways)
        drafter = NoDrafter()
        lanes.driving((), None)
        for number in range(self._load.requests):
            found = self._kept.get("ar", number)
            if found is None:
                one = self._decoded(decoder, drafter, number, capture=True)
                self._kept.add("ar", number, token_ids=one.token_ids, logits_sha256=one.logits_sha256)
                self._known[number] = Known(one.token_ids, one.logits_sha256)
            else:
                self._known[number] = Known(tuple(found["token_ids"]), found["logits_sha256"])
            self._progress("logits are known", number)
        timed = [self._decoded(decoder, drafter, number) for number in range(self._timed)]
        for number, one in enumerate(timed):
            _hold_same(self._known[number].token_ids, one.token_ids, "started ahead", number)
        self._newest = (decoder, drafter)
        return self._summed(timed)

    def speculative(
        self,
        inner: StaticDrafter | None,
        drafts: int,
        name: str = "drafts",
        heard: Callable[[int, int], None] = lambda tokens, wrong: None,  # noqa: ARG005
    ) -> dict[str, Any]:
        """Steps of 1 + `drafts` rows, accepted as traces say, their logits held against `autoregressive`.

        Args:
            inner: runs in every step; None: nothing drafts, and verification alone is timed.
            drafts: tokens of a draft.
            name: under which its results are kept.
            heard: told how many tokens were compared and how many requests have other logits, as it goes.
        """
        load = self._load
        lanes, decoder = single_engine(self._target, load.positions, drafts + 1, self._graphs, self._ways)
        steps = load.output + 2
        drafter = ReplayedDrafter(
            drafts if inner is None else inner, self._target.config.vocab_size, steps, self._target.device
        )
        lanes.driving(drafter.taps, drafter)
        compared, wrong = 0, 0

        def decoded(number: int, *, capture: bool) -> Timed:
            self._record(
                drafter, number, draw_trace(load.acceptance_length, drafts, load.output, load.seed + number)
            )
            return self._decoded(decoder, drafter, number, capture=capture)

        for number in range(load.requests):
            known, found = self._known[number], self._kept.get(name, number)
            if found is None:
                one = decoded(number, capture=True)
                same = Known(one.token_ids, one.logits_sha256) == known
                self._kept.add(name, number, same=same)
            else:
                same = found["same"]
            compared, wrong = compared + len(known.token_ids), wrong + (not same)
            heard(compared, wrong)
            self._progress(f"{compared} tokens compared, {wrong} requests with other logits", number)
        timed = []
        for number in range(self._timed):
            timed.append(decoded(number, capture=False))
            _hold_same(self._known[number].token_ids, timed[-1].token_ids, f"k = {drafts}", number)
        self._newest = (decoder, drafter)
        return self._summed(timed) | {"exact_tokens": compared, "requests_with_other_logits": wrong}

    def profiled(self) -> dict[str, Any]:
        """The waterfall of what was timed last."""
        if self._newest is None:
            raise ValueError("nothing was timed yet")
        decoder, drafter = self._newest
        load = self._load
        if isinstance(drafter, ReplayedDrafter) and drafter.made is not None:
            trace = draw_trace(load.acceptance_length, drafter.made.drafts, load.output, load.seed)
            self._record(drafter, 0, trace)
        work = record(lambda: self._decoded(decoder, drafter, 0, output=min(PROFILED, load.output)))
        return asdict(waterfall(work))

    @property
    def _timed(self) -> int:
        return min(self._load.timed, self._load.requests)

    def _progress(self, what: str, number: int) -> None:
        of = self._load.requests
        if of > TOLD and (number + 1) % TOLD == 0:
            self._say(f"  {number + 1} of {of} requests: {what}")

    def _record(self, drafter: ReplayedDrafter, number: int, trace: Sequence[int]) -> None:
        drafter.record((*self._prompts[number], *self._known[number].token_ids), trace)

    def _decoded(
        self,
        decoder: Decoder,
        drafter: Drafter,
        number: int,
        *,
        capture: bool = False,
        output: int | None = None,
    ) -> Timed:
        request = Request(
            name=f"request {number}",
            prompt=self._prompts[number],
            sampling=Sampling(max_tokens=output or self._load.output),
            capture_logits=capture,
        )
        return decode_timed(decoder, drafter, request, time.monotonic_ns)

    def _summed(self, timed: Sequence[Timed]) -> dict[str, Any]:
        found = {
            "step_ms": round(middle(timed, lambda one: one.step_ms), 4),
            "tokens_per_second": round(middle(timed, lambda one: one.tokens_per_second), 2),
            "acceptance_length": round(middle(timed, lambda one: one.acceptance_length), 3),
            "steps_ms": [round(one.step_ms, 4) for one in timed],
            "peak_bytes": torch.cuda.max_memory_allocated() if self._target.device.type == "cuda" else None,
        }
        self._say(f"  step {found['step_ms']} ms, {found['tokens_per_second']} tokens/s")
        return found


class OutputsDifferError(MechanismError):
    """Two ways to decode the same request emitted different tokens."""


def _hold_same(known: Sequence[int], found: Sequence[int], how: str, number: int) -> None:
    if tuple(known) == tuple(found):
        return
    place = next((n for n, pair in enumerate(zip(known, found, strict=False)) if pair[0] != pair[1]), None)
    raise OutputsDifferError(
        f"request {number}, {how}: {len(found)} tokens, not the {len(known)} of autoregressive decoding; "
        f"the first difference is at {place}"
    )
