"""Whether a prompt rewords a row of a public set: shared runs of words, numbers masked. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.records import PromptSet

LONG = 8  # so many consecutive words in common are no accident
SHORT = 4
MOST_SHARED = 0.3  # of the runs of four words of a prompt, with any one public row

Gram = tuple[str, ...]

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")
# The wording that a set's format puts around every row (see sealed_evals.formats) is no row's own.
_FRAMES = (
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Write a solution to the following problem and make sure that it passes the tests:",
)


class Known(NamedTuple):
    """The runs of words of public rows."""

    names: tuple[str, ...]  # of the sets
    long: frozenset[Gram]
    short: dict[Gram, tuple[int, ...]]  # rows that hold the run

    def shared(self, turns: Sequence[str]) -> float:
        """Share of a prompt's runs of four words that one public row holds, for the row with most.

        1.0 when any run of eight words is a public row's.
        """
        words = [masked(turn) for turn in turns]
        if any(gram in self.long for turn in words for gram in grams(turn, LONG)):
            return 1.0
        found = {gram for turn in words for gram in grams(turn, SHORT)}
        rows = Counter(row for gram in found for row in self.short.get(gram, ()))
        return max(rows.values()) / len(found) if rows else 0.0

    def reworded(self, turns: Sequence[str]) -> bool:
        """Whether the prompt is a public row in other words or with other numbers."""
        return self.shared(turns) > MOST_SHARED


def known(sets: Iterable[PromptSet]) -> Known:
    """Index the rows of whole public sets."""
    names: list[str] = []
    long: set[Gram] = set()
    short: dict[Gram, list[int]] = {}
    row = 0
    for prompts in sets:
        names.append(prompts.name)
        for prompt in prompts.prompts:
            words = [masked(turn) for turn in prompt.turns]
            long.update(gram for turn in words for gram in grams(turn, LONG))
            for gram in {gram for turn in words for gram in grams(turn, SHORT)}:
                short.setdefault(gram, []).append(row)
            row += 1
    return Known(tuple(names), frozenset(long), {gram: tuple(rows) for gram, rows in short.items()})


def masked(text: str) -> list[str]:
    """The words of a text in lower case, every number the same, without the wording of formats."""
    for frame in _FRAMES:
        text = text.replace(frame, " ")
    return [_NUMBER.sub("0", word) for word in _WORD.findall(text.casefold())]


def grams(words: Sequence[str], length: int) -> Iterator[Gram]:
    """Every run of so many words."""
    return zip(*(words[start:] for start in range(length)), strict=False)
