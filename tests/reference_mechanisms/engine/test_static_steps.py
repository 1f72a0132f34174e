"""Steps of fixed shape against the dynamic engine: the same events, whatever is drafted and accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.calibration import NoDrafter, NullDrafter, ReplayDrafter
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import at_least
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.errors import RequestError, TargetError
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import KEY_BUCKET, LlamaTarget, load_llama
from reference_mechanisms.verification.chain import Verified, verify_choices
from tests.exhaustive import slow_but, slow_but_pairs
from tests.reference_mechanisms.drafters.networks import dspark
from tests.reference_mechanisms.engine.forcing import Script, ScriptedDrafter, ScriptedStatic, ids_of
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids, write_model

CAPACITY, ROWS, DRAFTS, WIDTH = KEY_BUCKET + 64, 8, 4, 24
OVER_AN_EDGE = tuple(random_ids(KEY_BUCKET - 9, seed=2))
PROMPTS = ((0, 5, 9, 33, 2), (0,), OVER_AN_EDGE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("static") / "target")


@pytest.fixture(scope="module")
def target(folder: Path) -> LlamaTarget:
    return load_llama(folder, torch.float64, CPU)


@pytest.fixture(scope="module", params=list(NETWORKS.values()), ids=list(NETWORKS))
def bound(request: pytest.FixtureRequest, target: LlamaTarget) -> Bound:
    return bind(request.param(), target, "drafter")


def dynamic(target: LlamaTarget, eos: Sequence[int] = (), rules: Rules | None = None) -> Decoder:
    return Decoder(target, eos, text_of, CAPACITY, rules)


def static(target: LlamaTarget, eos: Sequence[int] = (), rules: Rules | None = None) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(target.device)))
    return Decoder(target, eos, text_of, CAPACITY, rules, lanes)


@pytest.mark.parametrize(
    "bound",
    slow_but([NETWORKS["dflash"], NETWORKS["eagle3"]], NETWORKS.values()),
    ids=list(NETWORKS),
    indirect=True,
)
def test_steps_started_ahead_give_the_same_events(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Request after request, each ended by a token that a step behind it has already been started from."""
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(target.device), ahead=1))
    ahead = Decoder(target, (), text_of, CAPACITY, lanes=lanes)
    for prompt in PROMPTS:
        sampling = Sampling(max_tokens=24, stop_token_ids=(known[prompt][17],))
        for drafter in (NoDrafter(), bound.new_drafter(Drafting(drafts=DRAFTS))):
            events = decoded(ahead, drafter, prompt, sampling)
            assert events == decoded(static(target), drafter, prompt, sampling)


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def decoded(
    decoder: Decoder, drafter: Drafter, prompt: tuple[int, ...], sampling: Sampling, *, capture: bool = False
) -> list[Event]:
    request = Request(name="r", prompt=prompt, sampling=sampling, capture_logits=capture)
    return list(decoder.stream([request], drafter))


@pytest.fixture(scope="module")
def known(target: LlamaTarget) -> dict[tuple[int, ...], tuple[int, ...]]:
    sampling = Sampling(max_tokens=40)
    decoder = dynamic(target)
    return {prompt: ids_of(decoded(decoder, NoDrafter(), prompt, sampling)) for prompt in PROMPTS}


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "one token", "over a bucket's edge"])
def test_autoregressive_events_are_the_dynamic_ones(target: LlamaTarget, prompt: tuple[int, ...]) -> None:
    for budget in (1, 2, 40):
        sampling = Sampling(max_tokens=budget)
        expected = decoded(dynamic(target), NoDrafter(), prompt, sampling)
        assert decoded(static(target), NoDrafter(), prompt, sampling) == expected


@pytest.mark.parametrize(  # the next test tries them all
    "bound",
    slow_but([NETWORKS["dflash"], NETWORKS["eagle3"]], NETWORKS.values()),
    ids=list(NETWORKS),
    indirect=True,
)
def test_its_own_drafts_give_the_dynamic_events_at_every_budget(target: LlamaTarget, bound: Bound) -> None:
    one, other = dynamic(target), static(target)
    # What cuts is no drafter: one goes through all.
    every = range(1, DRAFTS + 4) if isinstance(bound.network, Eagle3) else (1, DRAFTS + 1)
    for budget in (*every, 24):  # the last steps of a long output are those of a short one
        for prompt in PROMPTS if budget == 24 else PROMPTS[:1]:
            drafting = Drafting(drafts=DRAFTS)
            sampling = Sampling(max_tokens=budget)
            expected = decoded(one, bound.new_drafter(drafting), prompt, sampling)
            assert decoded(other, bound.new_drafter(drafting), prompt, sampling) == expected


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "one token", "over a bucket's edge"])
def test_a_drafter_that_lived_through_rejections_drafts_as_a_new_one(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]], prompt: tuple[int, ...]
) -> None:
    """The program runs beside a script; each of its drafts is that of a drafter that reads plain taps."""
    script = Script(known[prompt], VOCAB, seed=1)
    sampling = Sampling(max_tokens=24)
    host = decoded(dynamic(target), ScriptedDrafter(script, DRAFTS), prompt, sampling)
    scripted = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, prompt)
    events = decoded(static(target), scripted, prompt, sampling)
    assert events == host
    assert len({event.accepted for event in events}) > 2
    made = scripted.made
    assert made is not None
    steps = [event for event in events if event.kind == "step"]
    assert len(made.drafted) == 1 + len(steps)  # the last one was made for nothing
    recorder = Recorder(bound, script)
    assert decoded(dynamic(target), recorder, prompt, sampling) == host
    for (start, draft), (emitted, proposal) in zip(made.drafted, recorder.seen, strict=False):
        assert int(start) == len(prompt) + emitted - 1
        assert tuple(draft[: len(proposal.token_ids)].tolist()) == proposal.token_ids


class Recorder:
    """The dynamic drafter under the same script."""

    def __init__(self, bound: Bound, script: Script) -> None:
        self.inner = bound.new_drafter(Drafting(drafts=DRAFTS))
        self.taps, self.script = self.inner.taps, ScriptedDrafter(script, DRAFTS)
        self.begin, self.extend = self.inner.begin, self.inner.extend
        self.seen: list[tuple[int, Proposal]] = []

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        self.seen.append((len(wanted[0].token_ids), self.inner.propose(wanted)[0]))
        return self.script.propose(wanted)


@pytest.mark.parametrize("bound", [NETWORKS["dflash"]], ids=["dflash"], indirect=True)  # a script drafts
def test_a_stop_ends_the_output_at_every_place_of_a_block(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    prompt, places = PROMPTS[0], set()
    sampling = Sampling(max_tokens=20)
    ends = {token: n for n, token in reversed(list(enumerate(known[prompt][:20])))}
    for eos in list(ends)[::2]:
        for seed in range(3):
            script = Script(known[prompt], VOCAB, seed, wrong=0.2 * seed)
            expected = decoded(dynamic(target, (eos,)), ScriptedDrafter(script, DRAFTS), prompt, sampling)
            scripted = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, prompt)
            events = decoded(static(target, (eos,)), scripted, prompt, sampling)
            assert events == expected
            if events[-1].kind == "step":
                places.add(len(events[-1].token_ids) - 1)
    assert places == set(range(DRAFTS + 1))


HOST: dict[str, Sampling] = {
    "greedy": Sampling(max_tokens=40),
    "stop string": Sampling(max_tokens=40, stop=("ab", "q", "z")),
    "penalties": Sampling(max_tokens=40, frequency_penalty=0.9, repetition_penalty=1.2),
    "min_tokens": Sampling(max_tokens=40, min_tokens=21, stop_token_ids=tuple(range(0, VOCAB, 3))),
    "sampled": Sampling(max_tokens=40, temperature=0.8, seed=5),
}


FEW = {("none", "greedy"), ("ngram", "sampled"), ("null", "penalties"), ("replay", "stop string")}
FEW |= {("script", way) for way in HOST}


@pytest.mark.parametrize(
    ("name", "sampling"), slow_but_pairs(FEW, ("none", "ngram", "null", "replay", "script"), HOST)
)
def test_drafts_of_the_host_give_the_dynamic_events(
    target: LlamaTarget, known: dict[tuple[int, ...], tuple[int, ...]], sampling: Sampling, name: str
) -> None:
    for prompt in PROMPTS:
        made: dict[str, Drafter] = {
            "none": NoDrafter(),
            "ngram": NgramDrafter(7, 1, 3),
            "null": NullDrafter(5, known, VOCAB),
            "replay": ReplayDrafter(7, known),
            "script": ScriptedDrafter(Script(known[prompt], VOCAB, seed=3), 7),
        }
        expected = decoded(dynamic(target), made[name], prompt, sampling)
        assert decoded(static(target), made[name], prompt, sampling) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_confidences_and_drawn_drafts_stay_on_the_host(target: LlamaTarget, temperature: float) -> None:
    bound = bind(dspark(block=DRAFTS, vocab=VOCAB, hidden=WIDTH, own=True), target, "drafter")
    sampling = Sampling(max_tokens=24, temperature=temperature, seed=4)
    for drafting in (
        Drafting(drafts=DRAFTS, lengths=at_least(0.5)),
        Drafting(drafts=DRAFTS, sampled=True),
    ):
        expected = decoded(dynamic(target), bound.new_drafter(drafting), PROMPTS[0], sampling)
        assert decoded(static(target), bound.new_drafter(drafting), PROMPTS[0], sampling) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_bitwise_the_autoregressive_ones(
    folder: Path, known: dict[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype
) -> None:
    if not prepacks(dtype, CPU):
        pytest.skip(f"no prepacked product for {dtype} here: torch's own rounds by the row count")
    target = load_llama(folder, dtype, CPU)
    decoder, sampling = static(target), Sampling(max_tokens=40)
    bound = bind(NETWORKS["dflash"]().to(dtype), target, "drafter")
    for prompt in PROMPTS:
        plain = decoded(decoder, NoDrafter(), prompt, sampling, capture=True)
        script = Script(ids_of(plain), VOCAB, seed=7)
        host = decoded(decoder, ScriptedDrafter(script, 7), prompt, sampling, capture=True)
        scripted = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, prompt)
        own = decoded(decoder, scripted, prompt, sampling, capture=True)
        assert len({event.accepted for event in own}) > 2
        assert plain[-1].logits_sha256 == host[-1].logits_sha256 == own[-1].logits_sha256


@pytest.mark.parametrize(
    "bound", slow_but([NETWORKS["dflash"]], NETWORKS.values()), ids=list(NETWORKS), indirect=True
)
def test_a_request_is_served_up_to_the_last_position(target: LlamaTarget, bound: Bound) -> None:
    sampling = Sampling(max_tokens=CAPACITY - len(OVER_AN_EDGE))
    expected = decoded(dynamic(target), NoDrafter(), OVER_AN_EDGE, sampling)
    drafter = bound.new_drafter(Drafting(drafts=DRAFTS))
    found = decoded(static(target), drafter, OVER_AN_EDGE, sampling)
    assert ids_of(found) == ids_of(expected)
    assert len(ids_of(found)) == sampling.max_tokens


def test_a_recording_is_what_single_requests_get(
    target: LlamaTarget, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    decoder = static(target, eos=tuple(range(VOCAB)))
    requests = [Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=40)) for prompt in PROMPTS]
    assert decoder.continuation(requests) == [known[prompt] for prompt in PROMPTS]


def test_other_rules_are_asked_and_not_passed_over(
    target: LlamaTarget, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    def stingy(draft: Sequence[int], choices: Sequence[int]) -> Verified:
        return Verified(0, verify_choices((), choices).next_token)

    rules = dataclasses.replace(Rules(), verify=stingy)
    drafter = ReplayDrafter(7, known)
    expected = decoded(dynamic(target, rules=rules), drafter, PROMPTS[0], Sampling(max_tokens=9))
    assert {event.accepted for event in expected} == {0}
    assert decoded(static(target, rules=rules), drafter, PROMPTS[0], Sampling(max_tokens=9)) == expected
    bound = bind(NETWORKS["dflash"](), target, "drafter")
    script = Script(known[PROMPTS[0]], VOCAB, seed=0)
    scripted = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, PROMPTS[0])
    with pytest.raises(AssertionError, match="drives itself"):  # it was asked on the host
        decoded(static(target, rules=rules), scripted, PROMPTS[0], Sampling(max_tokens=9))


def test_padding_that_happens_to_be_right_is_not_accepted(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding is token 0, and here the target always chooses 0."""
    honest = type(target).logits

    def zero(self: LlamaTarget, hidden: Tensor) -> Tensor:
        found = honest(self, hidden).clone()
        found[:, 0] = 1e3
        return found

    monkeypatch.setattr(type(target), "logits", zero)
    bound = bind(NETWORKS["dflash"](), target, "drafter")
    script, sampling = Script((0,) * 20, VOCAB, seed=0, wrong=0.0), Sampling(max_tokens=20)
    scripted = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, PROMPTS[0])
    events = decoded(static(target), scripted, PROMPTS[0], sampling)
    assert [event.accepted for event in events] == [0, 4, 4, 4, 3]
    assert ids_of(events) == (0,) * 20


def test_a_device_that_stands_elsewhere_is_refused(target: LlamaTarget) -> None:
    lane = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU))).driving((), None)
    lane.begin((0, 5), torch.empty(0), 9, limit=5)
    lane.step(2)
    with pytest.raises(ValueError, match="the device stands at position 3, the host at 2"):
        lane.step(2)


def test_a_replaced_request_is_refused(target: LlamaTarget) -> None:
    decoder = static(target)

    def opened(prompt: tuple[int, ...]) -> Iterator[Event]:
        return decoder.stream(
            [Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=9))], NoDrafter()
        )

    first, second = opened(PROMPTS[0]), opened(PROMPTS[1])
    next(first)
    next(second)
    with pytest.raises(RequestError, match="another request took the place of this one"):
        next(first)
    assert len(ids_of(list(second))) == 8


def test_a_draft_longer_than_the_step_is_refused(
    target: LlamaTarget, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError, match="a draft of 8 in a step of 8 rows"):
        decoded(static(target), ReplayDrafter(8, known), PROMPTS[0], Sampling(max_tokens=40))


def test_logits_that_are_no_numbers_are_refused(folder: Path) -> None:
    broken = load_llama(folder, torch.float32, CPU)
    lane = Lanes(broken, 64, Static(ROWS, Graphs(CPU))).checking(())
    lane.verify((3,), 0)
    with torch.inference_mode():
        broken._final_norm.fill_(torch.nan)
    with pytest.raises(RequestError, match="logits that are no numbers"):
        lane.verify((3,), 0)


def test_a_target_of_another_kind_is_refused(target: LlamaTarget) -> None:
    other: Any = SimpleNamespace(device=CPU, config=target.config)
    with pytest.raises(TargetError, match="steps of fixed shape know dense and hybrid targets only"):
        Lanes(other, 32, Static(8, Graphs(CPU)))
