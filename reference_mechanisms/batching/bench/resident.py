"""The reference engine with a request set: what the target says is learnt once, then variants are timed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.bench.lines import Served, Tally
from reference_mechanisms.batching.bench.replaying import Known, ReplayedBatch, ReplayedSlots, Silent
from reference_mechanisms.batching.bench.replaying_trees import ReplayedTrees, Sizes
from reference_mechanisms.batching.bench.requests import Work, request_set
from reference_mechanisms.batching.bench.singly import Singly
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.driven import DrivenBatcher
from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import Runner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.simulating import variants
from reference_mechanisms.batching.traces.format import Recording, Trace
from reference_mechanisms.drafters.protocol import ContextDrafter
from reference_mechanisms.engine.bench.single import no_text
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.slot_lane import SlotLane
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import MechanismError, RequestError
from reference_mechanisms.request import Request, Sampling

AUTOREGRESSIVE = "autoregressive"  # the variant without a drafter
DRIVEN = "driven"  # everything but cohorts and confidences, with the device in the lead
TREES = "trees"  # one for each request, of as many nodes, and nothing shared
SHARED = "shared trees"  # the nodes worth most of all requests' trees, by the table of costs
Clock = Callable[[], int]  # nanoseconds


class OutputsDifferError(MechanismError):
    """Drafts changed a token."""


class Driving(NamedTuple):
    """What the device needs to lead."""

    replayed: ReplayedSlots  # drafts whole
    lane: SlotLane  # runs it


class Trees(NamedTuple):
    """What trees need."""

    nodes: int  # of each
    new_runner: Callable[[BatchSettings], Runner]  # of steps that verify them


class Parts(NamedTuple):
    """What an engine is made of."""

    target: Target
    new_drafter: Callable[[], ContextDrafter]  # for one batch; drafts `drafts` tokens
    drafts: int
    new_runner: Callable[[BatchSettings], Runner]  # for as many slots or more; may be the same again
    costs: StepCosts | None = None
    singly: Singly | None = None  # how one request at a time is served; None: as a batch of one
    driving: Callable[[], Driving] | None = None  # the same every time; None: the host leads in every variant
    trees: Trees | None = None  # None: drafts are chains in every variant


class Exact(NamedTuple):
    """Decoding with drafts held against decoding without."""

    tokens: int  # compared, the ids and the bits of their logits
    mismatches: int  # requests with other logits


class _Decoded(NamedTuple):
    token_ids: tuple[int, ...]
    logits_sha256: str | None


class Resident:
    """One target and the drafter beside it."""

    def __init__(
        self,
        parts: Parts,
        recording: Recording,
        traces: Sequence[Trace],
        *,
        seed: int = 0,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        """Prepare; nothing is decoded yet.

        Args:
            parts: of the engine.
            recording: of the traces.
            traces: a request each.
            seed: of the prompts.
            clock: tells nanoseconds.

        Raises:
            MechanismError: the drafter makes shorter drafts than the traces have.
        """
        if parts.drafts < recording.drafts:
            raise MechanismError(
                f"the traces are of {recording.drafts} drafts and the drafter makes {parts.drafts}"
            )
        self._parts, self._clock, self._recording = parts, clock, recording
        vocabulary = parts.target.config.vocab_size
        self._works = request_set(traces, len(traces), vocabulary, seed)
        self._told = all(one.confidences for trace in traces for one in trace.attempts)
        positions = max(len(work.prompt) + work.trace.tokens for work in self._works)
        self._turns = Decoder(parts.target, (), no_text, positions).turns
        self._known: dict[tuple[int, ...], Known] = {}

    def variants(self, full: BatchSettings) -> tuple[str, ...]:
        """All that can be served."""
        parts, more = self._parts, []
        if parts.driving is not None:
            more.append(DRIVEN)
        if parts.trees is not None:
            more += [TREES] if parts.costs is None else [TREES, SHARED]
        return (*variant_names(full), *more)

    def learn(self, settings: BatchSettings, count: int) -> None:
        """Decode requests that are not known yet without drafts: what drafts must repeat.

        Args:
            settings: of batching.
            count: of the first requests.
        """
        missing = [work for work in self._works[:count] if work.prompt not in self._known]
        for work, one in zip(missing, self._decoded(AUTOREGRESSIVE, settings, missing)[0], strict=True):
            self._known[work.prompt] = Known(one.token_ids, work.trace)

    def serve(self, variant: str, settings: BatchSettings, count: int, tokens: int = 0) -> Served:
        """Serve the first requests, `settings.slots` at a time, and take the time.

        Args:
            variant: of `variants(settings)`, or `AUTOREGRESSIVE`.
            settings: with everything on.
            count: requests.
            tokens: most of each output; 0: as the traces have it.

        Raises:
            OutputsDifferError: a request emitted other tokens than without drafts.
        """
        self.learn(settings, count)
        works = [work.cut(tokens) for work in self._works[:count]]
        found, served = self._decoded(variant, settings, works)
        if served is None:
            raise MechanismError("no request to serve")
        self._hold_same(variant, works, found)
        return served

    def hold_exact(self, variant: str, settings: BatchSettings, count: int) -> Exact:
        """Decode the first requests without drafts and with them, and compare the bits of all logits.

        Raises:
            OutputsDifferError: a request emitted other tokens.
        """
        works = self._works[:count]
        plain, _ = self._decoded(AUTOREGRESSIVE, settings, works, capture=True)
        self._known |= {
            work.prompt: Known(one.token_ids, work.trace) for work, one in zip(works, plain, strict=True)
        }
        drafted, _ = self._decoded(variant, settings, works, capture=True)
        self._hold_same(variant, works, drafted)
        pairs = zip(plain, drafted, strict=True)
        other = sum(one.logits_sha256 is None or one.logits_sha256 != two.logits_sha256 for one, two in pairs)
        return Exact(sum(len(one.token_ids) for one in plain), other)

    def _hold_same(self, variant: str, works: Sequence[Work], found: Sequence[_Decoded]) -> None:
        for number, (work, one) in enumerate(zip(works, found, strict=True)):
            if one.token_ids != self._known[work.prompt].continuation[: work.trace.tokens]:
                raise OutputsDifferError(
                    f"{variant}: request {number} emitted other tokens than without drafts"
                )

    @torch.inference_mode()
    def _decoded(
        self, variant: str, settings: BatchSettings, works: Sequence[Work], *, capture: bool = False
    ) -> tuple[list[_Decoded], Served | None]:
        """What each request became, and the times of all; None of no request."""
        if not works:
            return [], None
        engine = self._engine(variant, settings)
        requests = [_request(number, work, capture=capture) for number, work in enumerate(works)]
        tokens: dict[str, list[int]] = {request.name: [] for request in requests}
        hashes: dict[str, str | None] = {}
        verifications = drafted = accepted = steps = 0
        began = self._clock()
        tally = Tally(len(works), settings.slots, began / 1e9)
        for request in requests:
            engine.submit(request)
        while engine.busy:
            verified, outcomes = False, engine.step()
            for name, event in outcomes:
                if isinstance(event, RequestError):
                    raise event
                tokens[name] += event.token_ids
                if event.kind == "step":
                    verified = True
                    verifications, drafted = verifications + 1, drafted + event.drafted
                    accepted += event.accepted
                if event.finish_reason is not None:
                    hashes[name] = event.logits_sha256
            steps += verified
            events = [event for _, event in outcomes if not isinstance(event, RequestError)]
            tally.count(
                sum(len(event.token_ids) for event in events),
                ended=sum(event.finish_reason is not None for event in events),
                now_s=self._clock() / 1e9,
            )
        if self._parts.target.device.type == "cuda":
            torch.cuda.synchronize(self._parts.target.device)
        wall = (self._clock() - began) / 1e9
        served = Served(
            concurrency=settings.slots,
            requests=len(works),
            variant=variant,
            tokens=tally.tokens,
            wall_s=wall,
            full_tokens=tally.full[0],
            full_s=tally.full[1],
            verifications=verifications if drafted else None,
            drafted=drafted if drafted else None,
            accepted=accepted if drafted else None,
            steps=steps,
        )
        return [_Decoded(tuple(tokens[one.name]), hashes[one.name]) for one in requests], served

    def _engine(self, variant: str, full: BatchSettings) -> BatchEngine:
        parts = self._parts
        if parts.singly is not None and full.slots == 1:
            if variant == AUTOREGRESSIVE:
                return parts.singly.autoregressive()
            _found(variant, full)
            return parts.singly.replaying(self._known)
        if variant == DRIVEN and parts.driving is not None:
            return self._driven(parts.driving(), dataclasses.replace(full, cohorts=False))
        if variant in {TREES, SHARED} and variant in self.variants(full) and parts.trees is not None:
            return self._with_trees(parts.trees, full, shared=variant == SHARED)
        if variant == AUTOREGRESSIVE:
            plain = dataclasses.replace(full, budget=False, adaptive=False, cohorts=False)
            drafts, settings = Drafts(Silent(parts.new_drafter().taps), 0), plain
        else:
            settings = _found(variant, full)
            ration = Ration() if settings.budget and self._told else None
            replayed = ReplayedBatch(
                parts.new_drafter(),
                self._known,
                parts.target.config.vocab_size,
                parts.drafts,
                None if ration is None else ration.lengths,
            )
            drafts = Drafts(replayed, parts.drafts, ration)
        return Batcher(parts.new_runner(settings), self._turns, drafts, settings, parts.costs)

    def _with_trees(self, trees: Trees, full: BatchSettings, *, shared: bool) -> Batcher:
        parts, siblings = self._parts, self._recording.siblings
        if siblings is None:
            raise MechanismError("the traces tell no ranks of siblings; make them with --siblings")
        settings = dataclasses.replace(
            full, budget=False, cohorts=False, adaptive=shared and full.adaptive, tree_budget=shared
        )
        ration = Ration() if shared else None
        sizes = Sizes(trees.nodes, self._recording.drafts, parts.target.config.vocab_size)
        counts = None if ration is None else ration.nodes
        drafter = ReplayedTrees(parts.new_drafter(), self._known, siblings, sizes, counts)
        drafts = Drafts(drafter, trees.nodes, ration, tree=True)
        return Batcher(
            trees.new_runner(settings), self._turns, drafts, settings, parts.costs if shared else None
        )

    def _driven(self, driving: Driving, settings: BatchSettings) -> DrivenBatcher:
        def joined(slot: int, request: Request) -> None:
            driving.replayed.begin(slot, request, self._known[request.prompt])

        return DrivenBatcher(driving.lane, self._turns, settings, self._parts.costs, joined=joined)


def variant_names(full: BatchSettings) -> tuple[str, ...]:
    """Everything, nothing, each mechanism alone, each left out, and decoding without drafts."""
    return (*variants(full), AUTOREGRESSIVE)


def _found(variant: str, full: BatchSettings) -> BatchSettings:
    known: Mapping[str, BatchSettings] = variants(full)
    if variant not in known:
        raise MechanismError(f"no variant {variant!r}; take one of {', '.join(variant_names(full))}")
    return known[variant]


def _request(number: int, work: Work, *, capture: bool) -> Request:
    return Request(
        name=f"request {number}",
        prompt=work.prompt,
        sampling=Sampling(max_tokens=work.trace.tokens, ignore_eos=True),
        capture_logits=capture,
    )
