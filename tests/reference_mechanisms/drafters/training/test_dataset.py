from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from reference_mechanisms.drafters.training.dataset import make, recipe_of
from reference_mechanisms.drafters.training.plan import TextSpec
from tests.reference_mechanisms.drafters.training.targets import teacher_in

GIVEN = [("gsm8k-train", "How many?"), ("dolly", "Why?"), ("dolly", "What? " * 40)]


class Letters:
    """A tokenizer for the small target: ids 2 and up are letters."""

    def encode(self, turn: str) -> tuple[int, ...]:
        return tuple(2 + ord(letter) % 50 for letter in turn)

    def opening(self, beginning: str) -> tuple[int, ...]:
        return (60, *self.encode(beginning))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("A") + token % 26) for token in token_ids)


def test_every_prompt_is_answered_at_each_of_its_temperatures(tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path, "llama")
    spec = TextSpec(
        new_tokens=6,
        turn_tokens=60,
        prompt_tokens=120,
        chat_turns=20,
        copies={"gsm8k": (0.0, 0.7, 0.7), "self": (0.5,)},
    )
    said: list[str] = []
    found = make(teacher, Letters(), GIVEN, recipe_of(spec), (1,), 4, said.append)
    by_source = {source: [one for one in found if one.source == source] for source, _ in GIVEN}
    assert [one.temperature for one in by_source["gsm8k-train"]] == [0.0, 0.7, 0.7]
    assert Letters().encode("How many?\nPlease reason")[:20] == by_source["gsm8k-train"][0].prompt[:20]
    assert [one.temperature for one in by_source["dolly"]] == [0.0]  # the long one is dropped
    own = [one for one in found if one.source == "self chat"]
    assert own
    assert {one.temperature for one in own} == {0.5}
    assert all(0 < len(one.text) <= 6 for one in found)
    assert "1 longer ones dropped" in " ".join(said)


def test_a_corpus_depends_on_its_seed_alone(tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path)
    recipe = recipe_of(TextSpec(new_tokens=5, turn_tokens=30, chat_turns=8, stubs=2, code_turns=3))
    made = [make(teacher, Letters(), GIVEN[:2], recipe, (1,), seed, lambda _line: None) for seed in (1, 1, 2)]
    assert made[0] == made[1]
    assert made[0] != made[2]


@pytest.mark.parametrize("stubs", [0, 3])
def test_stubs_ask_for_tasks_of_code_prompts(stubs: int, tmp_path: Path) -> None:
    given = [("mbpp-train", "Write a function to reverse a list of words.")]
    recipe = recipe_of(TextSpec(new_tokens=2, stubs=stubs))
    found = make(teacher_in(tmp_path), Letters(), given, recipe, (1,), 1, lambda _line: None)
    assert [one.source for one in found] == ["mbpp-train", *["self stub"] * stubs]
