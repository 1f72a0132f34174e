"""Lets the target write a training corpus: answers to given prompts, and to turns of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import msgspec

from reference_mechanisms.drafters.training import prompts as wording
from reference_mechanisms.drafters.training.corpus import Example
from reference_mechanisms.drafters.training.plan import TextSpec
from reference_mechanisms.drafters.training.teacher import Teacher
from reference_mechanisms.drafters.training.writing import Limits, Task, write

TURN_TEMPERATURE = 1.0  # of user turns that the target writes
TURN_MIN_P = 0.05


class Chat(Protocol):
    """The target's tokenizer with its chat template."""

    def encode(self, turn: str) -> tuple[int, ...]:
        """A user turn as a whole prompt, up to where the answer begins."""

    def opening(self, beginning: str) -> tuple[int, ...]:
        """A prompt that breaks off inside the user turn, behind these words."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How much of what."""

    new_tokens: int = 320  # of an answer
    turn_tokens: int = 128  # of a user turn that the target writes; longer ones are dropped
    prompt_tokens: int = 512  # longer prompts are dropped
    code_turns: int = 8000
    chat_turns: int = 14000
    stubs: int = 8000
    copies: tuple[tuple[str, tuple[float, ...]], ...]  # of a source (by how its name begins): temperatures
    columns: int = 4_000_000  # of prompts and texts at once; bounds memory


def recipe_of(spec: TextSpec) -> Recipe:
    """The recipe of a plan."""
    fields = msgspec.structs.asdict(spec)
    return Recipe(**fields | {"copies": tuple(spec.copies.items())})


@dataclass(frozen=True, slots=True)
class _Prompt:
    source: str
    turn: str
    token_ids: tuple[int, ...]


def make(
    teacher: Teacher,
    chat: Chat,
    given: Sequence[tuple[str, str]],
    recipe: Recipe,
    stop_ids: tuple[int, ...],
    seed: int,
    say: Callable[[str], None],
) -> list[Example]:
    """Write a corpus.

    Args:
        teacher: the target.
        chat: its tokenizer.
        given: source and text of prompts that others wrote.
        recipe: how much.
        stop_ids: of the target.
        seed: of everything drawn.
        say: told what goes on.
    """
    random = Random(seed)  # noqa: S311 - draws of training data, repeatable on purpose
    turns = _turns(teacher, chat, recipe, stop_ids, random, say)
    code = [turn for source, turn in turns if source == "self code"]
    tasks = [task for task in map(wording.described, (*code, *(text for _, text in given))) if task]
    stubs = [
        ("self stub", wording.stub(random.choice(tasks), random)) for _ in range(recipe.stubs if tasks else 0)
    ]
    worded = [(source, wording.formatted(source, text)) for source, text in given]
    found = [_Prompt(source, turn, chat.encode(turn)) for source, turn in (*worded, *turns, *stubs)]
    chosen = [one for one in found if len(one.token_ids) <= recipe.prompt_tokens]
    say(f"{len(chosen)} prompts, {len(found) - len(chosen)} longer ones dropped")
    jobs = [(one, temperature) for one in chosen for temperature in _temperatures(one.source, recipe)]
    limits = Limits(new_tokens=recipe.new_tokens, stop_ids=stop_ids, columns=recipe.columns)
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        say(f"{done} of {len(jobs)} answers")

    texts = write(teacher, [Task(one.token_ids, warm) for one, warm in jobs], limits, seed + 1, tell)
    return [
        Example(one.token_ids, text, one.source, warm) for (one, warm), text in zip(jobs, texts, strict=True)
    ]


def _turns(
    teacher: Teacher,
    chat: Chat,
    recipe: Recipe,
    stop_ids: tuple[int, ...],
    random: Random,
    say: Callable[[str], None],
) -> list[tuple[str, str]]:
    openings = [("self code", random.choice(wording.CODE_OPENINGS)) for _ in range(recipe.code_turns)]
    openings += [("self chat", random.choice(wording.CHAT_OPENINGS)) for _ in range(recipe.chat_turns)]
    if not openings:
        return []
    limits = Limits(
        new_tokens=recipe.turn_tokens, stop_ids=stop_ids, columns=recipe.columns, min_p=TURN_MIN_P
    )
    tasks = [Task(chat.opening(beginning), TURN_TEMPERATURE) for _, beginning in openings]
    texts = write(teacher, tasks, limits, random.getrandbits(32))
    found: dict[str, str] = {}  # turn -> source; the same turn twice is one
    for (source, beginning), text in zip(openings, texts, strict=True):
        if text and text[-1] in stop_ids:
            turn = (beginning + chat.decode(text)).strip()
            if turn:
                found.setdefault(turn, source)
    say(f"{len(found)} different turns of {len(openings)} begun")
    return [(source, turn) for turn, source in found.items()]


def _temperatures(source: str, recipe: Recipe) -> tuple[float, ...]:
    return next((warm for name, warm in recipe.copies if source.startswith(name)), (0.0,))
