"""Trees on the engine: output and logits are bitwise those of autoregressive decoding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import pytest
import torch

from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import KEY_BUCKET
from tests.exhaustive import slow_but, slow_but_pairs
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.engine.conftest import text_of
from tests.reference_mechanisms.engine.test_decode import (
    CAPACITY,
    PROMPTS,
    SAMPLINGS,
    Recorded,
    ends,
    outputs,
    requests,
)
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees

NODES = 12


def decoder(target: Target, eos: Sequence[int] = (EOS,)) -> Decoder:
    return Decoder(target, eos, text_of, CAPACITY, spare=NODES)


def recorded(target: Target, batch: Sequence[Request]) -> Recorded:
    """The target's own outputs, at the request's own temperature, past every stop."""
    free = [
        dataclasses.replace(
            one, sampling=dataclasses.replace(one.sampling, stop=(), stop_token_ids=(), ignore_eos=True)
        )
        for one in batch
    ]
    found = outputs(list(decoder(target).stream(free, NoDrafter())), len(batch))
    return {one.prompt: output for one, output in zip(batch, found, strict=True)}


@pytest.fixture(scope="module")
def known_at(target: Target) -> Callable[[Sampling], Recorded]:
    """Outputs of all prompts, recorded once for each way of sampling."""
    return functools.cache(lambda sampling: recorded(target, requests(sampling)))


FEW = {("alone", way) for way in SAMPLINGS} | {("batch", "greedy"), ("batch", "sampled, top-k and top-p")}


@pytest.mark.parametrize(("where", "sampling"), slow_but_pairs(FEW, ("alone", "batch"), SAMPLINGS))
def test_output_and_logits_are_bitwise_the_autoregressive_ones(
    target: Target, known_at: Callable[[Sampling], Recorded], sampling: Sampling, where: str
) -> None:
    batch = requests(sampling)
    known = known_at(sampling)
    accepted, drafts = set(), set()
    for part in [[one] for one in batch[:2]] if where == "alone" else [batch]:
        plain = list(decoder(target).stream(part, NoDrafter()))
        for seed in range(2 if where == "alone" else 3):
            drafted = list(decoder(target).stream(part, RandomTrees(known, VOCAB, seed, NODES)))
            assert outputs(drafted, len(part)) == outputs(plain, len(part))
            for slot, last in ends(plain).items():
                # Products in float64 round by the number of rows; ids still agree.
                if target.dtype == torch.float32:
                    assert ends(drafted)[slot].logits_sha256 == last.logits_sha256
                assert ends(drafted)[slot][5:8] == last[5:8]  # finish reason, stop reason, text
            accepted |= {event.accepted for event in drafted}
            drafts |= {event.drafted for event in drafted}
    assert accepted >= {0, 1, 2, 3}
    assert max(drafts) > 6


@pytest.mark.parametrize("budget", slow_but((1, 2, 3, 4, 5, 8, 13, 24), range(1, 25)))
def test_every_budget_gives_the_autoregressive_output(
    target: Target, known_at: Callable[[Sampling], Recorded], budget: int
) -> None:
    batch = requests(Sampling(max_tokens=budget, ignore_eos=True))
    known = known_at(Sampling(max_tokens=24, ignore_eos=True))
    events = list(decoder(target).stream(batch, RandomTrees(known, VOCAB, budget, NODES)))
    assert outputs(events, len(batch)) == [known[prompt][:budget] for prompt in PROMPTS]
    assert {event.finish_reason for event in ends(events).values()} == {"length"}


def test_a_long_output_goes_over_the_end_of_a_key_bucket(target: Target) -> None:
    batch = requests(
        Sampling(max_tokens=40, ignore_eos=True), [tuple(n % VOCAB for n in range(60, 40 + KEY_BUCKET))]
    )
    engine = Decoder(target, (), text_of, KEY_BUCKET + 40, spare=NODES)
    plain = list(engine.stream(batch, NoDrafter()))
    known = {batch[0].prompt: outputs(plain, 1)[0]}
    for seed in range(3):
        events = list(engine.stream(batch, RandomTrees(known, VOCAB, seed, NODES)))
        assert outputs(events, 1) == outputs(plain, 1)
        if target.dtype == torch.float32:
            assert events[-1].logits_sha256 == plain[-1].logits_sha256


def test_a_stop_ends_the_output_at_every_place_of_an_accepted_path(target: Target) -> None:
    batch = requests(Sampling(max_tokens=20), PROMPTS[:1])
    output = recorded(target, batch)[PROMPTS[0]]
    places = set()
    for eos in dict.fromkeys(output):
        plain = [output[: output.index(eos) + 1]]
        for seed in range(3):
            events = list(
                decoder(target, (eos,)).stream(batch, RandomTrees({PROMPTS[0]: output}, VOCAB, seed))
            )
            assert outputs(events, 1) == plain
            if events[-1].kind == "step" and events[-1].finish_reason == "stop":
                places.add((len(events[-1].token_ids) - 1, events[-1].accepted))
    assert {place for place, _ in places} >= {0, 1, 2, 3, 4}


def test_a_request_is_served_up_to_the_last_position_of_the_cache(target: Target) -> None:
    prompt = PROMPTS[0]
    batch = requests(Sampling(max_tokens=CAPACITY - len(prompt), ignore_eos=True), [prompt])
    known = recorded(target, batch)
    found = outputs(list(decoder(target).stream(batch, RandomTrees(known, VOCAB, 3, NODES))), 1)
    assert found == [known[prompt]]


def test_a_chain_of_one_request_runs_beside_the_tree_of_another(target: Target) -> None:
    batch = requests(Sampling(max_tokens=24, ignore_eos=True))
    known = recorded(target, batch)

    class Mixed(RandomTrees):
        def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
            found = super().propose(wanted)
            for n, one in enumerate(wanted):
                if one.slot % 2:
                    found[n] = Proposal(known[PROMPTS[one.slot]][len(one.token_ids) :][: min(4, one.limit)])
            return found

    events = list(decoder(target).stream(batch, Mixed(known, VOCAB, 5)))
    assert outputs(events, len(batch)) == [known[prompt] for prompt in PROMPTS]


def test_a_tree_deeper_than_the_limit_is_refused(target: Target) -> None:
    class Deep(NoDrafter):
        def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
            nodes = wanted[0].limit + 1
            return [Proposal((1,) * nodes, parents=tuple(range(-1, nodes - 1)))]

    with pytest.raises(ValueError, match="a draft of 29, limit 28"):
        list(decoder(target).stream(requests(Sampling(max_tokens=30), PROMPTS[:1]), Deep()))


def test_an_accepted_path_that_is_not_gathered_is_seen(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests: what a cache that keeps the first rows instead of the path would give."""
    batch = requests(Sampling(max_tokens=30, ignore_eos=True))
    known = recorded(target, batch)
    monkeypatch.setattr(KVCache, "gather", lambda self, slot, path: None)
    found = outputs(list(decoder(target).stream(batch, RandomTrees(known, VOCAB, 0))), 4)
    assert found != [known[prompt] for prompt in PROMPTS]
