from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.request import Request, Sampling


def propose(
    prompt: Sequence[int],
    emitted: Sequence[int],
    *,
    drafts: int = 4,
    low: int = 2,
    high: int = 3,
    limit: int = 9,
) -> tuple[int, ...]:
    drafter = NgramDrafter(drafts, low, high)
    drafter.begin(0, Request(name="r", prompt=tuple(prompt), sampling=Sampling(max_tokens=99)))
    return drafter.propose([Wanted(0, emitted, limit)])[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "emitted", "expected"),
    [
        pytest.param((1, 2, 3, 4, 5, 1), (2,), (3, 4, 5, 1), id="what followed the match"),
        pytest.param((1, 2, 3, 4), (5,), (), id="no match"),
        pytest.param((1, 2, 8, 1, 2, 9, 7, 1), (2,), (9, 7, 1, 2), id="the latest occurrence"),
        pytest.param((5, 1, 2, 7, 6, 1, 2, 8, 5, 1), (2,), (7, 6, 1, 2), id="the longest match first"),
        pytest.param((4,), (4, 4), (4,), id="a match that reaches into its own continuation"),
        pytest.param((), (1,), (), id="nothing to look at"),
    ],
)
def test_a_draft_is_what_followed_the_longest_then_latest_match(
    prompt: Sequence[int], emitted: Sequence[int], expected: Sequence[int]
) -> None:
    assert propose(prompt, emitted) == expected


@pytest.mark.parametrize(("drafts", "limit", "length"), [(2, 9, 2), (9, 3, 3), (9, 0, 0)])
def test_a_draft_is_at_most_as_long_as_asked(drafts: int, limit: int, length: int) -> None:
    assert len(propose((1, 2, 3, 4, 5, 1), (2,), drafts=drafts, limit=limit)) == length


def test_growing_step_by_step_gives_what_a_fresh_look_gives() -> None:
    rng = random.Random(0)  # noqa: S311 - test data
    prompt = [rng.randrange(4) for _ in range(30)]
    emitted: list[int] = []
    drafter = NgramDrafter(5, 1, 3)
    drafter.begin(0, Request(name="r", prompt=tuple(prompt), sampling=Sampling(max_tokens=99)))
    for _ in range(60):
        emitted += [rng.randrange(4) for _ in range(rng.randint(1, 4))]
        grown = drafter.propose([Wanted(0, emitted, 9)])[0].token_ids
        assert grown == propose(prompt, emitted, drafts=5, low=1)
        assert grown == searched((*prompt, *emitted), drafts=5, low=1, high=3)


def searched(text: Sequence[int], *, drafts: int, low: int, high: int) -> tuple[int, ...]:
    """The same by looking everywhere."""
    for size in range(high, low - 1, -1):
        newest = tuple(text[len(text) - size :])
        for start in range(len(text) - size - 1, -1, -1):
            if tuple(text[start : start + size]) == newest:
                return tuple(text[start + size : start + size + drafts])
    return ()


def test_a_slot_that_begins_anew_forgets_what_it_held() -> None:
    drafter = NgramDrafter(4, 2, 3)
    sampling = Sampling(max_tokens=9)
    drafter.begin(0, Request(name="a", prompt=(1, 2, 3), sampling=sampling))
    drafter.begin(0, Request(name="b", prompt=(7, 8, 1), sampling=sampling))
    assert drafter.propose([Wanted(0, (2,), 9)])[0].token_ids == ()
