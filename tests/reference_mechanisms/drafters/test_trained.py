from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.picking import Drawing, Picker
from reference_mechanisms.drafters.protocol import ContextDrafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import Lengths, at_least, most_tokens_per_second, survivals
from reference_mechanisms.drafters.trained import BlockDrafter, ChainDrafter, Drafting, TrainedDrafter
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.sampling import Purpose, uniform
from tests.reference_mechanisms.drafters.networks import (
    FULL,
    HIDDEN,
    SLIDING,
    VOCAB,
    dflash,
    dflash2,
    dspark,
    eagle3,
    ends,
    random_taps,
)
from tests.reference_mechanisms.drafters.trained_rows import block_states, chain_states


def mapped(vocab: int, size: int) -> Eagle3:
    network = eagle3(vocab, draft_vocab=size)
    assert network.vocabulary is not None
    network.vocabulary.d2t.copy_(torch.arange(size) >= size // 2)  # the ids behind the middle, one on
    return network


NETWORKS: dict[str, Callable[[int], Network]] = {
    "dflash": lambda vocab: dflash(FULL, 4, vocab),
    "dflash, sliding and causal layers": lambda vocab: dflash(SLIDING, 4, vocab),
    "dflash, anchor row": lambda vocab: dflash(FULL, 3, vocab, anchor_row=True),
    "dflash2": lambda vocab: dflash2(SLIDING, 4, vocab, candidates=2),
    "dspark": lambda vocab: dspark(FULL, 3, vocab),
    "dspark, rnn": lambda vocab: dspark(FULL, 3, vocab, kind="rnn"),
    "dspark, mask rows": lambda vocab: dspark(FULL, 4, vocab, anchor_row=False),
    "eagle3": eagle3,
    "eagle3, two layers": lambda vocab: eagle3(vocab, layers=2, norm_output=True),
    "eagle3, smaller vocabulary": lambda vocab: mapped(vocab, vocab - 1),
}


def drafter_of(network: Network, drafting: Drafting, vocab: int = VOCAB) -> TrainedDrafter:
    if isinstance(network, Eagle3):
        return ChainDrafter(network, (0, 1), ends(vocab), drafting)
    return BlockDrafter(network, ends(vocab), drafting)


def request(prompt: Sequence[int], temperature: float = 0.0, seed: int = 0) -> Request:
    sampling = Sampling(max_tokens=30, temperature=temperature, seed=seed)
    return Request(name="r", prompt=tuple(prompt), sampling=sampling)


def same(one: Proposal, other: Proposal) -> bool:
    if one.token_ids != other.token_ids or (one.probabilities is None) != (other.probabilities is None):
        return False
    if one.probabilities is None or other.probabilities is None:
        return True
    return torch.allclose(one.probabilities, other.probabilities, rtol=0, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_what_was_rejected_leaves_no_trace(make: Callable[[int], Network], temperature: float) -> None:
    """A drafter that lived through a ragged batch proposes what a new one does from the whole context."""
    network, rng = make(VOCAB), random.Random(3)  # noqa: S311 - test data
    drafting = Drafting(drafts=3, sampled=True)
    lengths = (1, 4, 9)
    texts = [[rng.randrange(VOCAB) for _ in range(60)] for _ in lengths]
    taps = [random_taps(60, seed=n) for n in range(3)]
    requests = [request(text[:n], temperature, n) for text, n in zip(texts, lengths, strict=True)]
    living = drafter_of(network, drafting)
    assert isinstance(living, ContextDrafter)
    for slot, n in enumerate(lengths):
        living.begin(slot, requests[slot])
        living.extend(slot, taps[slot][:n])
    known = list(lengths)
    for step in range(5):
        wanted = [Wanted(slot, texts[slot][n : known[slot] + 1], 3) for slot, n in enumerate(lengths)]
        asked = wanted if step % 2 else wanted[::-1]  # the order is the caller's
        proposed = dict(zip([one.slot for one in asked], living.propose(asked), strict=True))
        for one in wanted:
            fresh = drafter_of(network, drafting)
            fresh.begin(7, requests[one.slot])
            fresh.extend(7, taps[one.slot][: known[one.slot]])
            expected = fresh.propose([one._replace(slot=7)])[0]
            assert len(expected.token_ids) == 3
            assert same(proposed[one.slot], expected)
        for slot in range(3):
            kept = rng.randint(1, 4)
            living.extend(slot, taps[slot][known[slot] : known[slot] + kept])
            known[slot] += kept


def predicted(network: Network, taps: Tensor, text: Sequence[int]) -> tuple[int, ...]:
    """Greedy drafts by the forward of training: `taps` of all positions in front of the newest token."""
    embed, head = ends() if network.embed_tokens is None else (network.embed_tokens, ends().head)
    if isinstance(network, Eagle3):
        assert network.lm_head is not None
        drafts: list[int] = []
        for step in range(3):
            given = torch.tensor([*text, *drafts])
            row = chain_states(network, taps, given, step + 1, embed)[step, -1]
            drafts.append(int(network.target_ids(row.device)[network.lm_head(row).argmax()]))
        return tuple(drafts)
    config = network.config
    ids = torch.tensor([[text[-1], *[config.mask_token] * (config.rows(3) - 1)]])
    hidden = block_states(network, taps, embed(ids), torch.tensor([len(taps)]))
    rows = hidden if config.anchor_row else hidden[:, 1:]
    picker = Picker([Drawing("r", 0.0, 0, 0)], config.vocab_size)
    return tuple(network.draft(rows, ids[:, 0], head, picker).token_ids[0].tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_proposal_is_what_training_predicts(make: Callable[[int], Network], seed: int) -> None:
    network, taps = make(VOCAB), random_taps(7, seed=seed)
    text = [(5 * seed + 3 * n) % VOCAB for n in range(8)]
    drafter = drafter_of(network, Drafting(drafts=3))
    drafter.begin(0, request(text[:5]))
    drafter.extend(0, taps[:5])
    drafter.extend(0, taps[5:])
    assert drafter.propose([Wanted(0, text[5:], 9)])[0].token_ids == predicted(network, taps, text)


def test_proposals_keep_to_the_limit_and_to_the_requests_that_want_one() -> None:
    drafter = drafter_of(dspark(), Drafting(drafts=3))
    for slot in range(3):
        drafter.begin(slot, request((1, 2)))
        drafter.extend(slot, random_taps(2))
    found = drafter.propose([Wanted(2, (5,), 2), Wanted(0, (5,), 0), Wanted(1, (5,), 9)])
    assert [len(one.token_ids) for one in found] == [2, 0, 3]
    assert found[0].token_ids == found[2].token_ids[:2]
    assert drafter.propose([Wanted(0, (5,), 0)]) == [Proposal(())]


def test_fewer_drafts_than_trained_run_a_shorter_block() -> None:
    network = dflash(block=6)
    short, long = (drafter_of(network, Drafting(drafts=n)) for n in (2, 5))
    for one in (short, long):
        one.begin(0, request((1, 2)))
        one.extend(0, random_taps(2))
    assert [len(one.propose([Wanted(0, (5,), 9)])[0].token_ids) for one in (short, long)] == [2, 5]


def test_a_hole_in_the_context_is_an_error() -> None:
    drafter = drafter_of(dflash(), Drafting(drafts=3))
    drafter.begin(0, request((1, 2, 3)))
    drafter.extend(0, random_taps(2))
    with pytest.raises(ValueError, match="slot 0: context of 2 positions, the anchor is at 3"):
        drafter.propose([Wanted(0, (5,), 9)])


def test_above_temperature_0_drafts_are_drawn_only_where_asked() -> None:
    for sampled in (False, True):
        drafter = drafter_of(dspark(), Drafting(drafts=3, sampled=sampled))
        drafter.begin(0, request((1, 2), 0.8))
        drafter.extend(0, random_taps(2))
        assert (drafter.propose([Wanted(0, (5,), 9)])[0].probabilities is not None) == sampled


def test_confidences_shorten_the_proposal() -> None:
    seen: list[list[float]] = []

    def lengths(confidences: Sequence[Sequence[float]]) -> list[int]:
        seen.extend([*one] for one in confidences)
        return [1, 0]

    drafter = drafter_of(dspark(), Drafting(drafts=3, lengths=lengths, temperatures=(1e6, 1e6, 1e6)))
    for slot in range(2):
        drafter.begin(slot, request((1, 2)))
        drafter.extend(slot, random_taps(2))
    found = drafter.propose([Wanted(0, (5,), 9), Wanted(1, (5,), 2)])
    assert [len(one.token_ids) for one in found] == [1, 0]
    assert [len(one) for one in seen] == [3, 2]
    assert seen[0] == pytest.approx([0.5] * 3, abs=1e-3)  # a huge temperature knows nothing


# At temperature above 0, by enumeration: every path of drafts with its probability, every outcome of
# verification, and the target itself behind them.

TINY, DRAFTS = 4, 2
LENGTH = DRAFTS + 1


def target_after(prefix: tuple[int, ...]) -> Tensor:
    """p of a made-up target; one token is impossible now and then."""
    generator = torch.Generator().manual_seed(sum((n + 1) * 7**i for i, n in enumerate(prefix)))
    p = torch.rand(TINY, generator=generator, dtype=torch.float64)
    p[int(torch.randint(TINY, (1,), generator=generator))] *= len(prefix) % 2
    return p / p.sum()


def spread(law: dict[tuple[int, ...], float], prefix: tuple[int, ...], mass: float) -> None:
    """Let the target continue a prefix to the full length."""
    if len(prefix) >= LENGTH:
        law[prefix[:LENGTH]] = law.get(prefix[:LENGTH], 0.0) + mass
        return
    for token, p in enumerate(target_after(prefix).tolist()):
        spread(law, (*prefix, token), mass * p)


def verify(law: dict[tuple[int, ...], float], proposal: Proposal, mass: float) -> None:
    """All outcomes of rejection sampling of one proposal."""
    draft, reach = proposal.token_ids, mass
    for index, token in enumerate(draft):
        assert proposal.probabilities is not None
        p, q = target_after(draft[:index]), proposal.probabilities[index]
        keep = min(1.0, float(p[token] / q[token]))
        residual = (p - q).clamp(min=0)
        if keep < 1:
            for other, share in enumerate((residual / residual.sum()).tolist()):
                spread(law, (*draft[:index], other), reach * (1 - keep) * share)
        reach *= keep
    spread(law, draft, reach)


def proposed(network: Network, points: Sequence[float], lengths: Lengths | None = None) -> Proposal:
    """The proposal for given random numbers."""

    def scripted(key: int, position: int, purpose: Purpose) -> float:
        assert purpose == "draft"
        return points[position - 1]  # one token was emitted

    drafting = Drafting(drafts=DRAFTS, sampled=True, lengths=lengths, random=scripted)
    drafter = drafter_of(network, drafting, TINY)
    drafter.begin(0, request((1, 2, 0), 1.3))
    drafter.extend(0, random_taps(3))
    return drafter.propose([Wanted(0, (1,), 9)])[0]


def paths(network: Network) -> Iterator[tuple[tuple[float, ...], float]]:
    """Random numbers that lead to each path of drafts, with the path's probability."""

    def branch(points: tuple[float, ...], mass: float) -> Iterator[tuple[tuple[float, ...], float]]:
        if len(points) == DRAFTS:
            yield points, mass
            return
        told = proposed(network, (*points, *[0.5] * (DRAFTS - len(points))))
        assert told.probabilities is not None
        q = told.probabilities[len(points)]
        assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
        for end, width in zip(q.cumsum(0).tolist(), q.tolist(), strict=True):
            if width > 0:
                yield from branch((*points, end - width / 2), mass * width)

    return branch((), 1.0)


def law_of(network: Network, lengths: Lengths | None = None) -> dict[tuple[int, ...], float]:
    law: dict[tuple[int, ...], float] = {}
    for points, mass in paths(network):
        verify(law, proposed(network, points, lengths), mass)
    return law


def expected_law() -> dict[tuple[int, ...], float]:
    law: dict[tuple[int, ...], float] = {}
    spread(law, (), 1.0)
    return law


def distance(law: dict[tuple[int, ...], float]) -> float:
    right = expected_law()
    return max(
        abs(law.get(one, 0.0) - right.get(one, 0.0)) for one in itertools.product(range(TINY), repeat=LENGTH)
    )


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_sampled_drafts_leave_the_targets_distribution_as_it_is(make: Callable[[int], Network]) -> None:
    assert distance(law_of(make(TINY))) < 1e-12


SLOW, FAST = {1: 1.0, 2: 0.55, 3: 0.5}, {1: 1.0, 2: 0.6, 3: 0.5}


def best_of_all(confidences: Sequence[Sequence[float]]) -> list[int]:
    """The biased schedule: the best length of all, whatever it takes to know it."""
    alive = [survivals(one) for one in confidences]
    values = [[(1 + sum(one[:n])) * SLOW[1 + n] for n in range(len(one) + 1)] for one in alive]
    return [one.index(max(one)) for one in values]


def opinionated() -> Network:
    """A DSpark whose confidence is 0.75 behind the anchor, and then high behind token 0 alone."""
    network = dspark(FULL, 3, TINY)
    assert network.confidence_head is not None
    network.confidence_head.proj.weight.zero_()
    network.confidence_head.proj.weight[0, HIDDEN] = 1.0
    network.confidence_head.proj.bias.zero_()
    network.markov_head.markov_w1.weight[:, 0] = torch.tensor([4.0, 1.1, -6.0, -6.0])
    return network


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(most_tokens_per_second(SLOW.__getitem__), id="scheduled, slow steps"),
        pytest.param(most_tokens_per_second(FAST.__getitem__), id="scheduled, fast steps"),
        pytest.param(at_least(0.5), id="threshold"),
    ],
)
def test_a_schedule_leaves_the_targets_distribution_as_it_is(lengths: Lengths) -> None:
    assert distance(law_of(opinionated(), lengths)) < 1e-12


def test_the_schedules_of_this_test_give_different_lengths() -> None:
    network = opinionated()
    for lengths, wanted in (
        (most_tokens_per_second(SLOW.__getitem__), {0}),
        (most_tokens_per_second(FAST.__getitem__), {1, 2}),
        (at_least(0.5), {1, 2}),
        (best_of_all, {0, 2}),
    ):
        found = {len(proposed(network, points, lengths).token_ids) for points, _ in paths(network)}
        assert found == wanted


def test_a_schedule_that_looks_ahead_does_not() -> None:
    assert distance(law_of(opinionated(), best_of_all)) > 1e-3


def test_the_drafters_random_numbers_are_those_of_the_request() -> None:
    assert Drafting(drafts=2).random is uniform
