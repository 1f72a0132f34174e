"""Fresh prompts from a secret seed: distinct, of all kinds, none a public row in other words.

Every prompt is drawn with a key of its own, made from the seed and its place; to know one prompt,
or all public ones, tells nothing of another's key. Pure.

History: generator/1 (0.1.0) first version. A change of wording is a new version: a campaign names it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from harness.errors import InvalidRun
from sealed_evals.campaign.crypto import mac
from sealed_evals.formats import boxed, python_fence
from sealed_evals.generator import dialogue
from sealed_evals.generator.code import function_task, sentence_task
from sealed_evals.generator.mathematics import mathematics
from sealed_evals.generator.rewording import Known
from sealed_evals.generator.word_problems import word_problem

GENERATOR = "generator/1"
MOST_TRIES = 200  # for one prompt; the draws are so many that a few suffice


class Kind(NamedTuple):
    """A kind of prompt."""

    name: str  # the category of its rows
    like: str  # the public set it stands beside
    share: int  # of 20 prompts
    draw: Callable[[Random], tuple[str, ...]]


class Drafted(NamedTuple):
    """A generated prompt."""

    kind: str
    turns: tuple[str, ...]


KINDS = (
    Kind("word-problem", "gsm8k", 4, lambda rng: (boxed(word_problem(rng)),)),
    Kind("mathematics", "math500", 3, lambda rng: (boxed(mathematics(rng)),)),
    Kind("function", "humaneval", 3, lambda rng: (python_fence(function_task(rng)),)),
    Kind("task", "mbpp", 2, lambda rng: (sentence_task(rng),)),
    Kind("rewriting", "mt_bench", 2, dialogue.rewriting),
    Kind("extraction", "mt_bench", 2, dialogue.extraction),
    Kind("summary", "mt_bench", 2, dialogue.summary),
    Kind("chat", "mt_bench", 2, dialogue.chat),
)
_ORDER = tuple(kind for turn in range(4) for kind in KINDS if turn < kind.share)


def generate(seed: bytes, count: int, known: Known) -> list[Drafted]:
    """Draw prompts.

    Args:
        seed: 32 secret bytes.
        count: how many.
        known: public rows.

    Raises:
        InvalidRun: no further distinct prompt was found.
    """
    seen: set[str] = set()
    drafted: list[Drafted] = []
    for place in range(count):
        kind = _ORDER[place % len(_ORDER)]
        for attempt in range(MOST_TRIES):
            # The seed of each draw is an HMAC of 256 bits; what Random makes of it is not a secret's guard.
            rng = Random(mac(seed, f"{place}/{attempt}"))  # noqa: S311
            turns = kind.draw(rng)
            key = " ".join("\n".join(turns).casefold().split())
            if key not in seen and not known.reworded(turns):
                seen.add(key)
                drafted.append(Drafted(kind.name, turns))
                break
        else:
            raise InvalidRun(
                f"no distinct prompt of kind {kind.name} after {MOST_TRIES} tries, {place} drawn; "
                "ask for fewer shards or rows"
            )
    return drafted
