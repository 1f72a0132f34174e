"""Drafters with weights on the engine: random ones, made right in random places."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.protocol import ContextDrafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import at_least
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.exhaustive import slow_but
from tests.reference_mechanisms.drafters.networks import FULL, SLIDING, dflash, dflash2, dspark, eagle3
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.models import VOCAB, write_model

CAPACITY, WIDTH = 64, 24
PROMPTS = ((0, 5, 9, 33, 2), (0,), (0, 41, 7))
NETWORKS: dict[str, Callable[[], Network]] = {
    "dflash": lambda: dflash(FULL, 5, VOCAB, WIDTH, own=True),
    "dflash, anchor row": lambda: dflash(FULL, 4, VOCAB, WIDTH, own=True, anchor_row=True),
    "dflash2": lambda: dflash2(SLIDING, 5, VOCAB, WIDTH, own=True),
    "dspark": lambda: dspark(FULL, 4, VOCAB, WIDTH, own=True),
    "eagle3": lambda: eagle3(VOCAB, WIDTH),
}
DRAFTS, NODES = 4, 8


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    folder = write_model(tmp_path_factory.mktemp("trained") / "target")
    return load_llama(folder, torch.float64, torch.device("cpu"))


@pytest.fixture(scope="module", params=list(NETWORKS.values()), ids=list(NETWORKS))
def bound(request: pytest.FixtureRequest, target: LlamaTarget) -> Bound:
    return bind(request.param(), target, "drafter")


class Forced:
    """Runs a drafter and proposes the right tokens instead, wrong from a random place on."""

    def __init__(self, inner: ContextDrafter, recorded: dict[tuple[int, ...], tuple[int, ...]], seed: int):
        self.inner, self.recorded = inner, recorded
        self.rng = random.Random(seed)  # noqa: S311 - test data
        self.proposed: list[tuple[tuple[int, ...], tuple[int, ...], Proposal]] = []
        self.requests: dict[int, Request] = {}
        self.trees = RandomTrees(recorded, VOCAB, seed, NODES)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.inner.taps

    def begin(self, slot: int, request: Request) -> None:
        self.requests[slot] = request
        self.inner.begin(slot, request)
        self.trees.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        self.inner.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        forced = []
        for one, proposal in zip(wanted, self.inner.propose(wanted), strict=True):
            prompt = self.requests[one.slot].prompt
            self.proposed.append((prompt, tuple(one.token_ids), proposal))
            if proposal.parents is not None:
                forced.append(self.trees.tree(one))
                continue
            right = self.recorded[prompt][len(one.token_ids) :][: min(DRAFTS, one.limit)]
            cut = self.rng.randint(0, len(right))
            forced.append(Proposal((*right[:cut], *((token + 1) % VOCAB for token in right[cut:]))))
        return forced


def decoder(target: Target, eos: Sequence[int] = ()) -> Decoder:
    return Decoder(target, eos, lambda ids: "", CAPACITY, spare=NODES)


def requests(sampling: Sampling) -> list[Request]:
    return [Request(name=f"r{n}", prompt=p, sampling=sampling) for n, p in enumerate(PROMPTS)]


def outputs(events: Sequence[Event]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in PROMPTS]
    for event in events:
        found[event.slot].extend(event.token_ids)
    return [tuple(one) for one in found]


@pytest.fixture(scope="module")
def known(target: LlamaTarget) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Greedy continuations of 24 tokens."""
    found = decoder(target).continuation(requests(Sampling(max_tokens=24)))
    return dict(zip(PROMPTS, found, strict=True))


@pytest.mark.parametrize("tree", [None, NODES], ids=["chains", "trees"])
def test_the_drafter_sees_the_committed_positions_and_nothing_else(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]], tree: int | None
) -> None:
    """Each proposal is that of a new drafter which reads all taps from one forward."""
    sampling = Sampling(max_tokens=24)
    forced = Forced(bound.new_drafter(Drafting(drafts=DRAFTS, tree=tree)), known, 1)
    events = list(decoder(target).stream(requests(sampling), forced))
    assert outputs(events) == [known[prompt] for prompt in PROMPTS]
    accepted = {event.accepted for event in events if event.kind == "step"}
    assert accepted >= {0, 1, 2, 3}
    for prompt, emitted, proposal in forced.proposed:
        text = (*prompt, *emitted[:-1])
        rows = Rows(text, range(len(text)), (Segment(0, 0, len(text)),))
        seen = target.forward(rows, target.new_cache(1, CAPACITY), bound.taps).taps
        fresh = bound.new_drafter(Drafting(drafts=DRAFTS, tree=tree))
        fresh.begin(0, Request(name="fresh", prompt=prompt, sampling=sampling))
        fresh.extend(0, torch.cat(seen, dim=-1))
        limit = sampling.max_tokens - len(emitted) - 1
        again = fresh.propose([Wanted(0, emitted, limit)])[0]
        assert (proposal.token_ids, proposal.parents) == (again.token_ids, again.parents)


# As far as two full blocks: what comes behind ends like one of these.
@pytest.mark.parametrize("budget", [*range(1, 2 * DRAFTS + 3), 24])
def test_every_budget_gives_the_autoregressive_output(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]], budget: int
) -> None:
    sampling = Sampling(max_tokens=budget)
    forced = Forced(bound.new_drafter(Drafting(drafts=DRAFTS)), known, budget)
    events = list(decoder(target).stream(requests(sampling), forced))
    assert outputs(events) == [known[prompt][:budget] for prompt in PROMPTS]
    assert {event.finish_reason for event in events if event.finish_reason} == {"length"}


@pytest.mark.parametrize(  # what cuts is no drafter
    "bound", slow_but([NETWORKS["dflash"]], NETWORKS.values()), ids=list(NETWORKS), indirect=True
)
def test_a_stop_ends_the_output_at_every_place_of_a_block(
    target: LlamaTarget, bound: Bound, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    sampling = Sampling(max_tokens=20)
    places = set()
    first = {token: n for n, token in reversed(list(enumerate(known[PROMPTS[0]][:20])))}
    for eos in list(first)[::2]:
        plain = [_up_to(known[prompt][:20], eos) for prompt in PROMPTS]
        assert len(plain[0]) == first[eos] + 1
        for seed in range(3):
            forced = Forced(bound.new_drafter(Drafting(drafts=DRAFTS)), known, seed)
            events = list(decoder(target, (eos,)).stream(requests(sampling), forced))
            assert outputs(events) == plain
            last = next(event for event in events if event.slot == 0 and event.finish_reason == "stop")
            if last.kind == "step":
                places.add(len(last.token_ids) - 1)
    assert places == set(range(DRAFTS + 1))


def _up_to(output: tuple[int, ...], end: int) -> tuple[int, ...]:
    return output[: output.index(end) + 1] if end in output else output


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_its_own_trees_leave_the_output_as_it_is(
    target: LlamaTarget, bound: Bound, temperature: float
) -> None:
    sampling = Sampling(max_tokens=24, temperature=temperature, seed=4)
    plain = outputs(list(decoder(target).stream(requests(sampling), NoDrafter())))
    drafting = Drafting(drafts=DRAFTS, tree=NODES)
    events = list(decoder(target).stream(requests(sampling), bound.new_drafter(drafting)))
    assert outputs(events) == plain
    assert max(event.drafted for event in events) == NODES


@pytest.mark.parametrize("drafts", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_its_own_drafts_leave_the_output_as_it_is(
    target: LlamaTarget, bound: Bound, temperature: float, drafts: int
) -> None:
    sampling = Sampling(max_tokens=24, temperature=temperature, seed=4)
    plain = outputs(list(decoder(target).stream(requests(sampling), NoDrafter())))
    events = list(decoder(target).stream(requests(sampling), bound.new_drafter(Drafting(drafts=drafts))))
    assert outputs(events) == plain
    assert max(event.drafted for event in events) == drafts


def test_drawn_drafts_come_with_their_distribution_and_keep_the_budget(
    target: LlamaTarget, bound: Bound
) -> None:
    sampling = Sampling(max_tokens=24, temperature=2.0, seed=4)
    drafting = Drafting(drafts=DRAFTS, sampled=True)
    events = list(decoder(target).stream(requests(sampling), bound.new_drafter(drafting)))
    assert [len(output) for output in outputs(events)] == [24] * 3
    again = list(decoder(target).stream(requests(sampling), bound.new_drafter(drafting)))
    assert outputs(events) == outputs(again)


def test_a_request_is_served_up_to_the_last_position_of_the_cache(target: LlamaTarget, bound: Bound) -> None:
    request = Request(name="r", prompt=(0, 5), sampling=Sampling(max_tokens=CAPACITY - 2))
    drafter = bound.new_drafter(Drafting(drafts=DRAFTS))
    events = list(decoder(target).stream([request], drafter))
    assert sum(len(event.token_ids) for event in events) == CAPACITY - 2


def test_confidences_shorten_drafts_and_not_outputs(
    target: LlamaTarget, known: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    bound = bind(NETWORKS["dspark"](), target, "drafter")
    sampling = Sampling(max_tokens=24)
    drafting = Drafting(drafts=DRAFTS, lengths=at_least(0.5))
    events = list(decoder(target).stream(requests(sampling), bound.new_drafter(drafting)))
    assert outputs(events) == [known[prompt] for prompt in PROMPTS]
    assert len({event.drafted for event in events}) > 2


def test_a_target_borrows_its_embedding_and_head(target: LlamaTarget, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "narrow", hidden_size=16)
    narrow = load_llama(folder, torch.float64, torch.device("cpu"))
    borrowed = bind(dflash(FULL, 5, VOCAB, 16), narrow, "drafter")
    ids = torch.tensor([[3, 4], [60, 0]])
    assert borrowed.ends.embed(ids).shape == (2, 2, 16)
    rows = torch.randn(2, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([narrow.logits(block) for block in rows])
    torch.testing.assert_close(borrowed.ends.head(rows), expected)
    sampling = Sampling(max_tokens=12)
    plain = outputs(list(decoder(narrow).stream(requests(sampling), NoDrafter())))
    events = list(decoder(narrow).stream(requests(sampling), borrowed.new_drafter(Drafting(drafts=4))))
    assert outputs(events) == plain


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: dflash(vocab=VOCAB + 1, hidden=WIDTH), "`vocab_size` is 62", id="vocabulary"),
        pytest.param(lambda: dflash(vocab=VOCAB), "`target_hidden_size` is 12", id="hidden size"),
        pytest.param(
            lambda: dflash(vocab=VOCAB, hidden=WIDTH),
            "no embedding of its own is stored",
            id="borrowed width",
        ),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    target: LlamaTarget, make: Callable[[], Network], message: str
) -> None:
    with pytest.raises(DrafterError, match=message):
        bind(make(), target, "drafter")


def test_a_tap_the_target_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "short", num_hidden_layers=2)
    short = load_llama(folder, torch.float64, torch.device("cpu"))
    with pytest.raises(DrafterError, match=r"drafter: tap 1 is not among the layers -1\.\.0"):
        bind(dflash(FULL, 5, VOCAB, WIDTH, own=True), short, "drafter")
