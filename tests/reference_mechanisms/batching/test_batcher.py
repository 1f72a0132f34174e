from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.costs import StepCosts
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter, Proposal, Wanted
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.target import Target
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.linear import prepacks
from tests.harness.tiny import EOS, VOCAB
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.engine.conftest import text_of

CAPACITY, DRAFTS, SLOTS = 96, 6, 4
SAMPLINGS = (
    Sampling(max_tokens=17),
    Sampling(max_tokens=9, stop_token_ids=(33, 78, 203)),
    Sampling(max_tokens=1),
    Sampling(max_tokens=14, temperature=0.8, seed=5),
    Sampling(max_tokens=11, frequency_penalty=0.9, repetition_penalty=1.2),
)


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
            found.append(
                Proposal(tuple(t if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for t in right))
            )
        return found


def requests(count: int) -> list[Request]:
    rng = random.Random(4)  # noqa: S311 - test data
    return [
        Request(
            name=f"r{n}",
            prompt=(256, *(rng.randrange(32, 127) for _ in range(rng.randrange(0, 40)))),
            sampling=SAMPLINGS[n % len(SAMPLINGS)],
            capture_logits=True,
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def alone(target: Target) -> dict[str, list[Event]]:
    """Each request by itself, autoregressive."""
    decoder = Decoder(target, (EOS,), text_of, CAPACITY)
    return {one.name: list(decoder.stream([one], NoDrafter())) for one in requests(10)}


def tokens(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


def batcher(
    target: Target,
    drafter: Drafter,
    settings: BatchSettings,
    costs: StepCosts | None,
    rules: Rules | None = None,
) -> Batcher:
    turns = Turns((EOS,), text_of, CAPACITY, target.config.vocab_size, rules or Rules())
    runner = PackedRunner(target, settings.slots, CAPACITY + DRAFTS + 1)
    return Batcher(runner, turns, Drafts(drafter, DRAFTS), settings, costs)


def run(engine: Batcher, todo: Sequence[Request], rng: random.Random) -> dict[str, list[Event]]:
    """Requests come at random steps; two leave before they end."""
    waiting = list(todo)
    found: dict[str, list[Event]] = {one.name: [] for one in todo}
    leaving = {todo[1].name: 3, todo[4].name: 2}
    while waiting or engine.busy:
        for _ in range(rng.randrange(0, 4)):
            if waiting:
                engine.submit(waiting.pop(0))
        for name, event in engine.step():
            assert isinstance(event, Event)
            found[name].append(event)
            if len(found[name]) == leaving.get(name):
                engine.cancel(name)
    return found


SETTINGS = {
    "ragged": BatchSettings(slots=SLOTS),
    "lockstep": BatchSettings(slots=SLOTS, ragged=False),
    "whole prompts": BatchSettings(slots=SLOTS, prefill_rows=None),
    "pieces of 5": BatchSettings(slots=SLOTS, prefill_rows=5),
    "budget": BatchSettings(slots=SLOTS, budget=True),
    "adaptive": BatchSettings(slots=SLOTS, adaptive=True),
    "cohorts": BatchSettings(slots=SLOTS, cohorts=True),
    "all": BatchSettings(slots=SLOTS, budget=True, adaptive=True, cohorts=True, prefill_rows=7),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_request_gets_what_it_would_get_alone(
    target: Target, alone: dict[str, list[Event]], name: str
) -> None:
    todo, settings = requests(10), SETTINGS[name]
    drafter = Spoiling({one: tokens(events) for one, events in alone.items()}, seed=1)
    engine = batcher(target, drafter, settings, staircase(SLOTS, DRAFTS))
    found = run(engine, todo, random.Random(2))  # noqa: S311 - test data
    whole = 0
    for one in todo:
        mine, other = found[one.name], alone[one.name]
        assert tokens(mine) == tokens(other)[: len(tokens(mine))], one.name
        if mine[-1].finish_reason is not None:
            whole += 1
            last, expected = mine[-1], other[-1]
            assert tokens(mine) == tokens(other)
            assert last.text == expected.text
            assert (last.finish_reason, last.stop_reason) == (expected.finish_reason, expected.stop_reason)
            if prepacks(target.dtype, target.device):  # else torch's own product rounds by the row count
                assert last.logits_sha256 == expected.logits_sha256
    assert whole >= 8
    accepted = sum(event.accepted for events in found.values() for event in events)
    assert accepted > 0


def test_a_wrong_rule_shows(target: Target, alone: dict[str, list[Event]]) -> None:
    """The comparison sees a batch that keeps rows of rejected drafts."""
    drafter = Spoiling({one: tokens(events) for one, events in alone.items()}, seed=1)
    wrong = Rules(keep=lambda drafted, verified: min(1 + drafted, verified.accepted + 2))
    engine = batcher(target, drafter, SETTINGS["ragged"], None, wrong)
    found = run(engine, requests(10), random.Random(2))  # noqa: S311 - test data
    assert any(tokens(found[name]) != tokens(alone[name])[: len(tokens(found[name]))] for name in found)


def test_lockstep_accepts_what_the_slowest_does(target: Target, alone: dict[str, list[Event]]) -> None:
    answers = {one: tokens(events) for one, events in alone.items()}
    engine = batcher(target, Spoiling(answers, 1), SETTINGS["lockstep"], None)
    longest = sorted(requests(10), key=lambda one: -len(answers[one.name]))[:2]
    for one in longest:
        engine.submit(one)
    pairs = 0
    while engine.busy:
        events = [event for _, event in engine.step() if isinstance(event, Event)]
        outcomes = [event for event in events if event.kind == "step"]
        if len(outcomes) == 2 and not any(event.finish_reason for event in outcomes):
            pairs += 1
            assert outcomes[0].accepted == outcomes[1].accepted
    assert pairs > 1


def test_prompts_join_in_pieces_while_others_decode(target: Target) -> None:
    engine = batcher(target, NoDrafter(), BatchSettings(slots=2, prefill_rows=5), None)
    engine.submit(Request(name="a", prompt=(256,), sampling=Sampling(max_tokens=30, ignore_eos=True)))
    engine.step()
    engine.submit(Request(name="b", prompt=(256, *range(40, 61)), sampling=Sampling(max_tokens=3)))
    heard = []
    for _ in range(5):
        heard.append([name for name, _ in engine.step()])
        assert engine.planned is not None
        assert sum(piece.rows for piece in engine.planned.prefill) <= 5
    assert heard == [["a"], ["a"], ["a"], ["a"], ["b", "a"]]


def test_a_name_is_free_again_when_its_request_has_left(target: Target) -> None:
    engine = batcher(target, NoDrafter(), BatchSettings(slots=1), None)
    one = Request(name="a", prompt=(256, 50), sampling=Sampling(max_tokens=4))
    assert engine.submit(one) == "a"
    with pytest.raises(RequestError, match="a request of this name has not ended"):
        engine.submit(one)
    engine.step()
    with pytest.raises(RequestError, match="has not ended"):
        engine.submit(one)
    engine.cancel("a")
    assert not engine.busy
    engine.submit(one)
    engine.cancel("a")
    assert not engine.busy
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.submit(Request(name="b", prompt=(), sampling=Sampling(max_tokens=4)))
