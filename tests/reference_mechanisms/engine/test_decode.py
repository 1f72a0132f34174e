from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from reference_mechanisms.drafters.calibration import NoDrafter, NullDrafter, ReplayDrafter
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter, Proposal, Wanted
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.stops import ending_of
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.hybrid import HybridTarget
from tests.exhaustive import slow_but_pairs
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.engine.conftest import text_of

CAPACITY = 96
PROMPTS = ((256, 97, 98, 99, 97, 98), (256, 104, 101, 108, 108, 111), (256, 49, 50, 51), (256,))


class RandomDrafter:
    """Mixes right tokens, wrong tokens and empty drafts, at random."""

    def __init__(self, recorded: dict[tuple[int, ...], tuple[int, ...]], seed: int) -> None:
        self.replay = ReplayDrafter(12, recorded)
        self.rng = random.Random(seed)  # noqa: S311 - test data

    def begin(self, slot: int, request: Request) -> None:
        self.replay.begin(slot, request)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self._spoil(proposal) for proposal in self.replay.propose(wanted)]

    def _spoil(self, proposal: Proposal) -> Proposal:
        length = self.rng.randint(0, len(proposal.token_ids))
        return Proposal(
            tuple(
                token if self.rng.random() < 0.8 else self.rng.randrange(VOCAB)
                for token in proposal.token_ids[:length]
            )
        )


class SamplingDrafter:
    """Draws drafts from a fixed distribution q of its own, and tells it."""

    def __init__(self, probabilities: Tensor, drafts: int, seed: int) -> None:
        self.q, self.drafts = probabilities, drafts
        self.generator = torch.Generator().manual_seed(seed)

    def begin(self, slot: int, request: Request) -> None:
        pass

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        found = []
        for one in wanted:
            length = min(self.drafts, one.limit)
            if not length:
                found.append(Proposal(()))
                continue
            ids = torch.multinomial(self.q, length, replacement=True, generator=self.generator)
            found.append(Proposal(tuple(ids.tolist()), self.q.repeat(length, 1)))
        return found


def requests(sampling: Sampling, prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[Request]:
    return [
        Request(name=f"r{n}", prompt=prompt, sampling=sampling, capture_logits=True)
        for n, prompt in enumerate(prompts)
    ]


def decoder(target: Target, eos: Sequence[int] = (EOS,)) -> Decoder:
    return Decoder(target, eos, text_of, CAPACITY)


def outputs(events: Sequence[Event], count: int) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for event in events:
        found[event.slot].extend(event.token_ids)
    return [tuple(one) for one in found]


def ends(events: Sequence[Event]) -> dict[int, Event]:
    return {event.slot: event for event in events if event.finish_reason}


Recorded = dict[tuple[int, ...], tuple[int, ...]]


def record(target: Target, batch: Sequence[Request]) -> Recorded:
    found = decoder(target).continuation(batch)
    return {request.prompt: output for request, output in zip(batch, found, strict=True)}


def drafters(target: Target, batch: Sequence[Request]) -> dict[str, Drafter]:
    return drafters_of(record(target, batch))


def drafters_of(recorded: Recorded) -> dict[str, Drafter]:
    return {
        "ngram": NgramDrafter(7, 1, 3),
        "null": NullDrafter(5, recorded, VOCAB),
        "replay": ReplayDrafter(7, recorded),
        "random": RandomDrafter(recorded, 1),
    }


SAMPLINGS = {
    "greedy": Sampling(max_tokens=30),
    "stop token": Sampling(max_tokens=30, stop_token_ids=(33, 78, 203)),
    "stop string": Sampling(max_tokens=30, stop=("N", "o", "\xcb")),
    "penalties": Sampling(max_tokens=30, frequency_penalty=0.9, presence_penalty=0.3, repetition_penalty=1.2),
    "min_tokens": Sampling(max_tokens=30, min_tokens=21, stop_token_ids=(33, 78, 203)),
    "sampled": Sampling(max_tokens=30, temperature=0.8, seed=5),
    "sampled, top-k and top-p": Sampling(max_tokens=30, temperature=1.5, top_k=40, top_p=0.9, seed=2),
}


class Reference(NamedTuple):
    """What the target gives without drafts, at one way of sampling."""

    alone: list[list[Event]]  # of each prompt decoded by itself
    recorded: Recorded


@pytest.fixture(scope="module")
def reference(target: Target) -> Callable[[Sampling], Reference]:
    """Decoded once for all drafters."""

    @functools.cache
    def of(sampling: Sampling) -> Reference:
        batch = requests(sampling)
        alone = [list(decoder(target).stream([request], NoDrafter())) for request in batch]
        return Reference(alone, record(target, batch))

    return of


FEW = {("random", way) for way in SAMPLINGS} | {(name, "greedy") for name in ("ngram", "null", "replay")}
FEW |= {("replay", "stop string"), ("replay", "min_tokens"), ("ngram", "penalties"), ("null", "sampled")}


@pytest.mark.parametrize(
    ("name", "sampling"), slow_but_pairs(FEW, ("ngram", "null", "replay", "random"), SAMPLINGS)
)
def test_speculative_output_and_logits_are_bitwise_the_autoregressive_ones(
    target: Target, reference: Callable[[Sampling], Reference], sampling: Sampling, name: str
) -> None:
    batch = requests(sampling)
    alone, recorded = reference(sampling)
    together = list(decoder(target).stream(batch, drafters_of(recorded)[name]))
    last = ends(together)
    assert outputs(together, len(batch)) == [outputs(events, 1)[0] for events in alone]
    for slot, events in enumerate(alone):
        # Products in float64 round by the number of rows; ids still agree.
        if target.dtype == torch.float32:
            assert events[-1].logits_sha256 == last[slot].logits_sha256
        assert events[-1][5:8] == last[slot][5:8]  # finish reason, stop reason, text


def test_greedy_output_is_that_of_transformers(
    target: Target, tiny_folder: Path, hybrid_folder: Path
) -> None:
    folder = hybrid_folder if isinstance(target, HybridTarget) else tiny_folder
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=target.dtype)
    for request in requests(Sampling(max_tokens=40), PROMPTS[:3]):
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([request.prompt]),
                attention_mask=torch.ones(1, len(request.prompt), dtype=torch.long),
                max_new_tokens=40,
                do_sample=False,
                pad_token_id=EOS,
            )
        found = outputs(list(decoder(target).stream([request], NoDrafter())), 1)[0]
        assert found == tuple(ids[0, len(request.prompt) :].tolist())


def test_replay_accepts_every_draft_up_to_the_cut_and_null_none(target: Target) -> None:
    batch = requests(Sampling(max_tokens=30, ignore_eos=True))
    known = drafters(target, batch)
    replayed = [e for e in decoder(target).stream(batch, known["replay"]) if e.kind == "step"]
    assert all(event.accepted == event.drafted for event in replayed)
    assert all(len(event.token_ids) == event.drafted + 1 for event in replayed)
    left = dict.fromkeys(range(len(batch)), 29)  # behind the prefill's token
    for event in decoder(target).stream(batch, known["null"]):
        if event.kind == "step":
            assert (event.accepted, len(event.token_ids)) == (0, 1)
            assert event.drafted == min(5, left[event.slot] - 1)
            left[event.slot] -= 1
    assert set(left.values()) == {0}


def test_statistics_stop_at_the_cut(target: Target) -> None:
    free = requests(Sampling(max_tokens=30, ignore_eos=True), PROMPTS[:1])
    output = decoder(target).continuation(free)[0]
    position = next(n for n in range(3, 8) if output[n] not in output[:n])  # inside the first block of nine
    stopped = [
        dataclasses.replace(
            free[0], sampling=Sampling(max_tokens=30, ignore_eos=True, stop_token_ids=(output[position],))
        )
    ]
    events = list(decoder(target).stream(stopped, ReplayDrafter(8, {free[0].prompt: output})))
    assert events[-1].finish_reason == "stop"
    assert events[-1].stop_reason == output[position]
    assert outputs(events, 1)[0] == output[: position + 1]
    assert events[-1].drafted == 8
    assert events[-1].accepted == len(events[-1].token_ids) == position


@pytest.mark.parametrize("budget", [1, 2, 3, 8, 9, 10, 17])
def test_no_budget_is_passed_or_missed(target: Target, budget: int) -> None:
    batch = requests(Sampling(max_tokens=budget, ignore_eos=True))
    for drafter in drafters(target, batch).values():
        events = list(decoder(target).stream(batch, drafter))
        assert [len(output) for output in outputs(events, len(batch))] == [budget] * len(batch)
        assert {event.finish_reason for event in ends(events).values()} == {"length"}


def test_a_request_is_served_up_to_the_last_position_of_the_cache(target: Target) -> None:
    prompt = PROMPTS[0]
    batch = requests(Sampling(max_tokens=CAPACITY - len(prompt), ignore_eos=True), [prompt])
    for drafter in drafters(target, batch).values():
        assert len(outputs(list(decoder(target).stream(batch, drafter)), 1)[0]) == CAPACITY - len(prompt)


def test_a_decoder_can_be_used_again_with_other_batches(target: Target) -> None:
    engine = decoder(target)
    batch = requests(Sampling(max_tokens=20))
    first = outputs(list(engine.stream(batch, NoDrafter())), 4)
    assert outputs(list(engine.stream(batch[1:2], NoDrafter())), 1)[0] == first[1]
    assert outputs(list(engine.stream(batch[::-1], NoDrafter())), 4) == first[::-1]


def test_an_event_comes_before_the_next_step_is_computed(target: Target) -> None:
    asked: list[int] = []

    class Watching(NoDrafter):
        def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
            asked.append(len(wanted[0].token_ids))
            return super().propose(wanted)

    stream = decoder(target).stream(requests(Sampling(max_tokens=5), PROMPTS[:1]), Watching())
    assert next(stream).kind == "prefill"
    assert asked == []
    next(stream)
    assert asked == [1]


def test_drafts_with_a_distribution_leave_the_targets_distribution_as_it_is(tiny_folder: Path) -> None:
    """Chi-square of the first three tokens over seeds, against autoregressive draws."""
    from scipy import stats  # noqa: PLC0415

    from reference_mechanisms.targets.llama import load_llama  # noqa: PLC0415

    target = load_llama(tiny_folder, torch.float64, torch.device("cpu"))
    allowed = Sampling(max_tokens=3, temperature=3.0, top_k=3, ignore_eos=True)
    q = torch.full((VOCAB,), 1.0 / VOCAB, dtype=torch.float64)
    likely = [203, 202, 191, 33, 81, 189]
    q[likely] += 0.3
    q /= q.sum()
    samples: dict[str, list[tuple[int, ...]]] = {"ar": [], "drafted": []}
    batch_size = 64
    for name in samples:
        for start in range(0, 512, batch_size):
            batch = [
                Request(
                    name="r",
                    prompt=PROMPTS[0],
                    sampling=dataclasses.replace(allowed, seed=start + n + (10**6 if name == "ar" else 0)),
                )
                for n in range(batch_size)
            ]
            drafter = NoDrafter() if name == "ar" else SamplingDrafter(q, 2, start)
            samples[name] += outputs(list(decoder(target).stream(batch, drafter)), batch_size)
    seen = sorted({output for found in samples.values() for output in found})
    assert len(seen) > 10
    table = [[found.count(output) for output in seen] for found in samples.values()]
    kept = [n for n in range(len(seen)) if table[0][n] + table[1][n] >= 10]
    pooled = [[*(row[n] for n in kept), sum(row) - sum(row[n] for n in kept) + 1] for row in table]
    assert stats.chi2_contingency(pooled).pvalue > 1e-3


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        pytest.param((), Sampling(max_tokens=4), "r: the prompt is empty", id="empty prompt"),
        pytest.param((VOCAB,), Sampling(max_tokens=4), "not in the target's vocabulary", id="no such token"),
        pytest.param((-1,), Sampling(max_tokens=4), "not in the target's vocabulary", id="negative token"),
        pytest.param((1,) * 90, Sampling(max_tokens=7), "do not fit the context of 96", id="too long"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_by_name(
    target: Target, prompt: tuple[int, ...], sampling: Sampling, message: str
) -> None:
    request = Request(name="r", prompt=prompt, sampling=sampling)
    with pytest.raises(RequestError, match=message):
        next(decoder(target).stream([request], NoDrafter()))


def test_a_draft_over_the_limit_is_refused(target: Target) -> None:
    class Endless(NoDrafter):
        def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
            return [Proposal((1,) * (one.limit + 1)) for one in wanted]

    with pytest.raises(ValueError, match="limit 28"):
        list(decoder(target).stream(requests(Sampling(max_tokens=30), PROMPTS[:1]), Endless()))


def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(target), "logits", lambda self, hidden: torch.full((len(hidden), VOCAB), torch.nan)
    )
    with pytest.raises(RequestError, match="no numbers"):
        list(decoder(target).stream(requests(Sampling(max_tokens=3), PROMPTS[:1]), NoDrafter()))


def test_min_tokens_names_the_stops_it_holds_back() -> None:
    assert ending_of(SAMPLINGS["min_tokens"], (EOS,)).min_tokens == 21
