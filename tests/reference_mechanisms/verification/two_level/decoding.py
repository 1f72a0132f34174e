"""Decodes with and without a first level, and compares."""

from __future__ import annotations

from collections.abc import Sequence

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Event, Request, Sampling
from tests.harness.tiny import EOS
from tests.reference_mechanisms.verification.two_level.conftest import text_of

CAPACITY, NODES = 80, 12
PROMPTS = ((256, 97, 98, 99, 97, 98), (256, 49))
GREEDY = Sampling(max_tokens=12)
SAMPLINGS = {
    "greedy": GREEDY,
    "stop token": Sampling(max_tokens=12, stop_token_ids=(33, 78, 203)),
    "penalties": Sampling(max_tokens=12, frequency_penalty=0.9, repetition_penalty=1.2),
    "sampled": Sampling(max_tokens=12, temperature=0.9, top_k=40, seed=2),
}


def requests(sampling: Sampling = GREEDY) -> list[Request]:
    return [
        Request(name=f"r{n}", prompt=prompt, sampling=sampling, capture_logits=True)
        for n, prompt in enumerate(PROMPTS)
    ]


def decoded(target: Target, batch: Sequence[Request], drafter: Drafter | None = None) -> list[Event]:
    decoder = Decoder(target, (EOS,), text_of, CAPACITY, spare=NODES)
    return list(decoder.stream(batch, drafter or NoDrafter()))


def said(events: Sequence[Event]) -> dict[int, tuple[object, ...]]:
    """Ids of each request, how it ended, and the hash of its logits."""
    ids: dict[int, tuple[int, ...]] = {}
    ends: dict[int, tuple[object, ...]] = {}
    for event in events:
        ids[event.slot] = ids.get(event.slot, ()) + event.token_ids
        if event.finish_reason:
            ends[event.slot] = event[5:]
    return {slot: (one, *ends[slot]) for slot, one in ids.items()}


def steps(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "step"]


def recordings(target: Target, batch: Sequence[Request]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Greedy outputs past every stop, by prompt."""
    found = Decoder(target, (), text_of, CAPACITY).continuation(batch)
    return {one.prompt: output for one, output in zip(batch, found, strict=True)}
