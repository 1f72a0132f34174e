"""Requests and drafters for steps of fixed shape, on a small dense target."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.slot_hybrid import SlotHybridCache
from reference_mechanisms.engine.slot_tree import SlotPathCache
from reference_mechanisms.engine.target import Cache, Target
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.llama import KEY_BUCKET
from tests.reference_mechanisms.targets.models import VOCAB, fill_with_garbage

CAPACITY, DRAFTS, SLOTS = KEY_BUCKET + 64, 6, 4
GREEDY = (
    Sampling(max_tokens=21),
    Sampling(max_tokens=12, stop_token_ids=tuple(range(0, VOCAB, 7))),
    Sampling(max_tokens=1),
    Sampling(max_tokens=18, stop=("ab", "q")),
)
SAMPLED = (
    Sampling(max_tokens=14, temperature=0.8, seed=5),
    Sampling(max_tokens=11, frequency_penalty=0.9, repetition_penalty=1.2),
)


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def requests(count: int, samplings: Sequence[Sampling], *, capture: bool = True) -> list[Request]:
    """Every fourth stands just in front of a bucket's edge."""
    rng = random.Random(4)  # noqa: S311 - test data
    lengths = [KEY_BUCKET - 9 if n % 4 == 3 else rng.randrange(1, 90) for n in range(count)]
    return [
        Request(
            name=f"r{n}",
            prompt=tuple(rng.randrange(VOCAB) for _ in range(length)),
            sampling=samplings[n % len(samplings)],
            capture_logits=capture,
        )
        for n, length in enumerate(lengths)
    ]


def decoded_alone(target: Target, todo: Sequence[Request]) -> dict[str, list[Event]]:
    """Each request by itself, autoregressive, in the engine that knows no fixed shapes."""
    decoder = Decoder(target, (), text_of, CAPACITY)
    return {one.name: list(decoder.stream([one], NoDrafter())) for one in todo}


def tokens(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


def kv_of(cache: Cache) -> KVCache:
    """Keys and values of the slots of a batch."""
    found = cache.kv if isinstance(cache, SlotHybridCache | SlotPathCache) else cache
    assert isinstance(found, KVCache)
    return found


def spoil(cache: Cache) -> None:
    """Leave what other requests might have left, and padding."""
    fill_with_garbage(kv_of(cache), seed=3)
    if isinstance(cache, SlotHybridCache):
        for part in cache.states:
            part[:, :-1] = 3.0


class Spoiling:
    """Drafts the target's own continuation, with faults at random places."""

    def __init__(self, answers: Mapping[str, Sequence[int]], seed: int) -> None:
        self.answers, self.rng = answers, random.Random(seed)  # noqa: S311 - test data
        self.names: dict[int, str] = {}

    def begin(self, slot: int, request: Request) -> None:
        self.names[slot] = request.name

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        found = []
        for one in wanted:
            answer = self.answers[self.names[one.slot]]
            right = answer[len(one.token_ids) :][: min(DRAFTS, one.limit)]
            ids = (t if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for t in right)
            found.append(Proposal(tuple(ids)))
        return found


def run(
    engine: BatchEngine, todo: Sequence[Request], seed: int, leaving: Mapping[str, int] | None = None
) -> dict[str, list[Event]]:
    """Requests come at random steps; those that leave do so behind so many events."""
    rng = random.Random(seed)  # noqa: S311 - test data
    waiting = list(todo)
    found: dict[str, list[Event]] = {one.name: [] for one in todo}
    while waiting or engine.busy:
        for _ in range(rng.randrange(0, 4)):
            if waiting:
                engine.submit(waiting.pop(0))
        for name, event in engine.step():
            assert isinstance(event, Event), event
            found[name].append(event)
            if len(found[name]) == (leaving or {}).get(name):
                engine.cancel(name)
    return found


def hold_same(
    todo: Sequence[Request], found: Mapping[str, list[Event]], alone: Mapping[str, list[Event]]
) -> int:
    """Hold that each got what it gets alone, logits to the bit; how many were decoded to their end."""
    whole = 0
    for one in todo:
        mine, other = found[one.name], alone[one.name]
        assert tokens(mine) == tokens(other)[: len(tokens(mine))], one.name
        if not mine or mine[-1].finish_reason is None:
            continue
        whole += 1
        last, expected = mine[-1], other[-1]
        assert tokens(mine) == tokens(other), one.name
        assert last.text == expected.text
        assert (last.finish_reason, last.stop_reason) == (expected.finish_reason, expected.stop_reason)
        if one.capture_logits:
            assert last.logits_sha256 == expected.logits_sha256, one.name
    return whole
