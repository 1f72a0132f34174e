from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Prompt
from sealed_evals.splits import draw
from tests.sealed_evals import samples

SETS = st.lists(st.sampled_from(["math", "code", "chat"]), min_size=1, max_size=30).map(
    lambda categories: [samples.prompt(number, category) for number, category in enumerate(categories)]
)


@samples.patient
@given(SETS, st.integers(0, 2**63 - 1))
def test_a_larger_draw_begins_with_the_smaller_one(prompts: list[Prompt], seed: int) -> None:
    whole = draw(prompts, len(prompts), seed)

    assert sorted(prompt.prompt_id for prompt in whole) == sorted(prompt.prompt_id for prompt in prompts)
    for count in range(len(prompts)):
        assert draw(prompts, count, seed) == whole[:count]


@samples.patient
@given(SETS, st.integers(0, 1000), st.data())
def test_the_order_of_the_file_does_not_matter(prompts: list[Prompt], seed: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(prompts))

    assert draw(shuffled, len(prompts), seed) == draw(prompts, len(prompts), seed)


def test_another_seed_draws_other_prompts() -> None:
    prompts = [samples.prompt(number) for number in range(100)]

    draws = {draw(prompts, 10, seed) for seed in range(20)}

    assert len(draws) == 20


def test_a_draw_is_the_same_on_every_machine() -> None:
    prompts = [samples.prompt(number, "math" if number % 3 else "code") for number in range(12)]

    drawn = [prompt.prompt_id.removeprefix("sample/") for prompt in draw(prompts, 6, seed=1)]

    assert drawn == ["11", "6", "4", "7", "9", "10"]


def test_every_prompt_is_drawn_about_equally_often() -> None:
    prompts = [samples.prompt(number) for number in range(20)]

    drawn = Counter(prompt.prompt_id for seed in range(1000) for prompt in draw(prompts, 5, seed))

    # Binomial(1000, 1/4) has a standard deviation below 14; 60 is more than four of them.
    assert all(abs(count - 250) < 60 for count in drawn.values())
    assert len(drawn) == 20


def test_categories_of_equal_size_are_drawn_evenly() -> None:
    prompts = [samples.prompt(number, f"category {number % 6}") for number in range(78)]

    for count in range(1, 79):
        sizes = Counter(prompt.category for prompt in draw(prompts, count, seed=7))
        fewest = min(sizes.values()) if len(sizes) == 6 else 0
        assert max(sizes.values()) - fewest <= 1


def test_a_draw_has_the_proportions_of_its_set() -> None:
    prompts = [samples.prompt(number, "rare" if number < 10 else "common") for number in range(100)]

    drawn = Counter(prompt.category for prompt in draw(prompts, 20, seed=3))

    assert drawn == {"rare": 2, "common": 18}


def test_the_draw_depends_on_the_text_and_not_on_the_bytes_of_the_row() -> None:
    prompts = [samples.prompt(number) for number in range(30)]
    elsewhere = [msgspec.structs.replace(prompt, row_sha256="ff") for prompt in prompts]

    drawn = [prompt.prompt_id for prompt in draw(prompts, 8, seed=5)]

    assert [prompt.prompt_id for prompt in draw(elsewhere, 8, seed=5)] == drawn


@pytest.mark.parametrize("count", [-1, 4])
def test_a_draw_beyond_the_set_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {count} of 3 prompts"):
        draw([samples.prompt(number) for number in range(3)], count, seed=0)
