"""Whatever was drafted and accepted, what follows is bitwise autoregressive decoding."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.hybrid import HybridTarget, load_hybrid
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.llama import KEY_BUCKET
from tests.reference_mechanisms.targets.hybrids import in_pieces, same, states, verified, write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids

PROMPT, LENGTH = 9, 60
RECURRENT = 3  # layers
IDS = random_ids(LENGTH, seed=1)


class Truth(NamedTuple):
    """Autoregressive decoding of `IDS`: what lies behind each number of tokens."""

    target: HybridTarget
    logits: Tensor  # [LENGTH, VOCAB]
    states: list[list[Tensor]]  # behind 0, 1, .. LENGTH tokens


@pytest.fixture(
    scope="module",
    params=[("qwen3_next", torch.float32), ("qwen3_5", torch.float32), ("qwen3_5", torch.bfloat16)],
    ids=str,
)
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    family, dtype = request.param
    if not prepacks(dtype, CPU):
        pytest.skip(f"no prepacked product for {dtype} here: torch's own rounds by the row count")
    folder = write_hybrid(tmp_path_factory.mktemp("hybrid"), family, linear_num_value_heads=6)
    target = load_hybrid(folder, dtype, CPU)
    cache = target.new_cache(1, LENGTH)
    found, logits = [states(cache, RECURRENT)], []
    for _ in range(LENGTH):
        logits.append(in_pieces(target, cache, IDS, [1]))
        found.append(states(cache, RECURRENT))
    return Truth(target, torch.cat(logits), found)


def prefilled(truth: Truth, slots: int = 1) -> HybridCache:
    cache = truth.target.new_cache(slots, LENGTH + 20)
    in_pieces(truth.target, cache, IDS, [PROMPT])
    return cache


def wrong(ids: Sequence[int]) -> list[int]:
    return [(token + 1) % VOCAB for token in ids]


def forced(truth: Truth, cache: HybridCache, drafted: int, accepted: int) -> None:
    """One step that drafts so many tokens, of which so many are right."""
    at = cache.length(0)
    right = IDS[at : at + 1 + accepted]
    draft = [*right, *wrong((IDS + IDS)[at + 1 + accepted : at + 1 + drafted])]
    found = verified(truth.target, cache, draft)
    assert torch.equal(found[: 1 + accepted], truth.logits[at : at + 1 + accepted])
    assert same(states(cache, RECURRENT), truth.states[at]), "a forward changed the state"
    cache.commit(0, 1 + accepted)
    assert cache.length(0) == at + 1 + accepted
    assert same(states(cache, RECURRENT), truth.states[at + 1 + accepted])


def test_the_states_are_worth_comparing(truth: Truth) -> None:
    for one, other in itertools.pairwise(truth.states):
        assert not any(map(torch.equal, one, other))


@pytest.mark.parametrize("drafted", [0, 1, 2, 4, 7])
def test_every_number_of_accepted_tokens_leaves_the_autoregressive_state(truth: Truth, drafted: int) -> None:
    for accepted in range(drafted + 1):
        cache = prefilled(truth)
        forced(truth, cache, drafted, accepted)
        at = cache.length(0)
        assert torch.equal(in_pieces(truth.target, cache, IDS, [1, 1]), truth.logits[at : at + 2])


@pytest.mark.parametrize("seed", range(6))
def test_every_sequence_of_steps_leaves_the_autoregressive_state(truth: Truth, seed: int) -> None:
    """Steps without a draft stand among the others, behind full, partial and no acceptance."""
    rng = random.Random(seed)  # noqa: S311 - test data
    cache = prefilled(truth)
    while (left := LENGTH - cache.length(0)) > 0:
        drafted = rng.choice((0, 0, 1, 3, 8))
        forced(truth, cache, drafted, min(rng.randint(0, drafted), left - 1))


@pytest.mark.parametrize("prompt", range(1, 10))
def test_a_prompt_as_long_as_a_verify_step_is_a_prompt(truth: Truth, prompt: int) -> None:
    cache = truth.target.new_cache(1, LENGTH)
    assert torch.equal(in_pieces(truth.target, cache, IDS, [prompt]), truth.logits[:prompt])
    forced(truth, cache, 7, 3)


def test_verifying_again_without_a_commit_forgets_the_first(truth: Truth) -> None:
    cache = prefilled(truth)
    verified(truth.target, cache, wrong(IDS[PROMPT : PROMPT + 8]))
    forced(truth, cache, 3, 2)
    verified(truth.target, cache, wrong(IDS[:5]))
    cache.commit(0, 0)
    assert same(states(cache, RECURRENT), truth.states[PROMPT + 3])
    forced(truth, cache, 2, 2)


def test_a_cleared_slot_begins_again(truth: Truth) -> None:
    cache = prefilled(truth)
    verified(truth.target, cache, IDS[PROMPT : PROMPT + 4])
    cache.clear(0)
    assert cache.length(0) == 0
    assert same(states(cache, RECURRENT), truth.states[0])
    assert torch.equal(in_pieces(truth.target, cache, IDS, [5]), truth.logits[:5])
    with pytest.raises(ValueError, match="cannot keep 1 rows of 0"):
        cache.commit(0, 1)


def test_requests_of_different_lengths_share_a_forward_and_do_not_notice_each_other(truth: Truth) -> None:
    cache = truth.target.new_cache(3, LENGTH)
    lengths, counts = (20, 3, 9), (5, 1, 8)
    for slot, length in enumerate(lengths):
        verified(truth.target, cache, IDS[:length], slot)
        cache.commit(slot, length)
    order = (2, 0, 1)
    ids = [IDS[lengths[slot] : lengths[slot] + counts[slot]] for slot in order]
    places = [range(lengths[slot], lengths[slot] + counts[slot]) for slot in order]
    segments = [Segment(slot, lengths[slot], counts[slot]) for slot in order]
    for changed in (None, 0, 1, 2):
        given = [wrong(mine) if n == changed else mine for n, mine in enumerate(ids)]
        rows = Rows([*itertools.chain(*given)], [*itertools.chain(*places)], segments)
        found = truth.target.logits(truth.target.forward(rows, cache).hidden)
        parts = torch.split(found, [counts[slot] for slot in order])
        for n, (slot, mine) in enumerate(zip(order, parts, strict=True)):
            wanted = truth.logits[lengths[slot] : lengths[slot] + counts[slot]]
            assert torch.equal(mine, wanted) == (n != changed)
    for slot in (0, 1):  # of the last forward, in which the request of slot 1 went wrong
        cache.commit(slot, 1)
        assert same(states(cache, RECURRENT, slot), truth.states[lengths[slot] + 1]) == (slot == 0)
    assert same(states(cache, RECURRENT, 2), truth.states[9])


def test_rows_over_the_end_of_a_key_bucket(truth: Truth) -> None:
    ids = random_ids(KEY_BUCKET + 12)
    plain, cache = truth.target.new_cache(1, len(ids)), truth.target.new_cache(1, len(ids))
    in_pieces(truth.target, plain, ids, [KEY_BUCKET - 4])
    in_pieces(truth.target, cache, ids, [KEY_BUCKET - 4])
    wanted = in_pieces(truth.target, plain, ids, [1] * 10)
    draft = ids[KEY_BUCKET - 4 : KEY_BUCKET + 2] + wrong(ids[KEY_BUCKET + 2 : KEY_BUCKET + 6])
    assert torch.equal(verified(truth.target, cache, draft)[:6], wanted[:6])
    cache.commit(0, 6)
    assert torch.equal(in_pieces(truth.target, cache, ids, [4]), wanted[6:])


# what is refused


def test_more_rows_than_ran_cannot_be_kept(truth: Truth) -> None:
    cache = prefilled(truth)
    verified(truth.target, cache, IDS[:3])
    with pytest.raises(ValueError, match="slot 0: cannot keep 4 rows of 3"):
        cache.commit(0, 4)
    cache.commit(0, 3)
    with pytest.raises(ValueError, match="cannot keep 1 rows of 0"):
        cache.commit(0, 1)


def test_rows_that_do_not_begin_at_the_state_are_refused(truth: Truth) -> None:
    cache = prefilled(truth)
    rows = Rows(IDS[:2], (4, 5), (Segment(0, 4, 2),))
    with pytest.raises(
        ValueError, match=f"begin at position 4, but the recurrent state stands behind {PROMPT}"
    ):
        truth.target.forward(rows, cache)


def test_two_segments_of_a_slot_are_refused(truth: Truth) -> None:
    cache = prefilled(truth)
    rows = Rows(IDS[:2], (PROMPT, PROMPT), (Segment(0, PROMPT, 1), Segment(0, PROMPT, 1)))
    with pytest.raises(ValueError, match="slot 0 has two segments"):
        truth.target.forward(rows, cache)


def test_a_forward_that_did_not_end_cannot_be_committed(
    truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = prefilled(truth)

    def broken(*args: object) -> Tensor:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(HybridTarget, "_recur", broken)
        with pytest.raises(RuntimeError, match="no memory"):
            verified(truth.target, cache, IDS[:2])
    with pytest.raises(ValueError, match="slot 0: its last forward did not end"):
        cache.commit(0, 1)
    assert same(states(cache, RECURRENT), truth.states[PROMPT])
    forced(truth, cache, 2, 1)
