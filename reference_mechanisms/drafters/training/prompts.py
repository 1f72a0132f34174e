"""Which prompts the target answers for training: given ones, and turns that it writes itself.

A drafter learns the target's own continuations, so what matters of a prompt is that it leads to text
like that of real use: the same formats as the field's benchmarks, never their content. `overlapping`
holds the second half of that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

OVERLAP_WORDS = 8
COMMON_SHARE = 0.5  # a run of words in so many of a set's prompts belongs to its format
WORD = re.compile(r"\w+")

STEP_BY_STEP = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
PYTHON_FENCE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"
)

# How user turns begin that the target then goes on with by itself; "" leaves it all to the target.
CODE_OPENINGS = ("Write a function to", "Write a python function to", "Write a Python function that")
CHAT_OPENINGS = (
    *("",) * 8, "Write", "Explain", "Describe", "Compose", "Imagine", "Can you", "Could you", "How", "What",
    "Why", "Given the following", "Edit the following", "Summarize", "Translate", "Suppose", "Help me",
    "Compare", "Create", "List", "Please", "Provide", "Analyze", "Act as", "Discuss", "Design", "Draft",
)  # fmt: skip

_ARGUMENTS = (
    "numbers: List[int]", "n: int", "text: str", "string: str", "values: List[float]", "words: List[str]",
    "a: int, b: int", "lst", "arr", "s", "n", "x, y", "strings: List[str]", "numbers: List[float], n: int",
    "dictionary", "matrix", "items", "l: list", "test_list", "a, b, c", "text, k",
)  # fmt: skip
_RETURNS = ("", "", "", " -> int", " -> bool", " -> str", " -> List[int]", " -> List[str]", " -> float")
_HEADERS = ("", "\n", "from typing import List\n\n\n", "from typing import List\n\n\n", "import math\n\n\n")
_FILLER = frozenset(
    {
        "a", "an", "the", "to", "of", "in", "for", "and", "or", "with", "from", "by", "is", "are", "that",
        "this", "given", "using", "whether", "if", "it", "as", "on", "python", "function", "write", "which",
    }
)  # fmt: skip
_NAME_WORDS = 3
_SHORTEST = 12  # characters of a description


def formatted(source: str, prompt: str) -> str:
    """A given prompt as the field's benchmarks would put it.

    Args:
        source: where it came from; mathematics is known by its name.
        prompt: as it stands in the file.
    """
    return STEP_BY_STEP.format(prompt) if source.startswith(("gsm8k", "math")) else prompt


def described(turn: str) -> str | None:
    """What the function of a code turn shall do: its first sentence without the opening; None if none."""
    sentence = turn.strip().split("\n")[0].split(". ")[0].strip().rstrip(".")
    for opening in sorted(CODE_OPENINGS, key=len, reverse=True):
        if sentence.startswith(opening):
            task = sentence.removeprefix(opening).strip()
            return task if len(task) >= _SHORTEST else None
    return None


def stub(task: str, random: Random) -> str:
    """A function with a docstring and no body that asks for `task`, in a Python fence."""
    words = [word.lower() for word in WORD.findall(task) if word.isascii() and word.lower() not in _FILLER]
    name = "_".join(words[:_NAME_WORDS]) or "solve"
    name = f"f_{name}" if name[0].isdigit() else name
    arguments, returns = random.choice(_ARGUMENTS), random.choice(_RETURNS)
    quotes = random.choice(('"""', '"""', "'''"))
    opening = random.choice((" ", "", "\n    "))
    example = random.choice(("", "", f"\n    >>> {name}({_example(arguments, random)})"))
    docstring = f"{quotes}{opening}{task[0].upper()}{task[1:]}.{example}\n    {quotes}"
    code = f"{random.choice(_HEADERS)}def {name}({arguments}){returns}:\n    {docstring}\n"
    return PYTHON_FENCE.format(code)


def _example(arguments: str, random: Random) -> str:
    examples = []
    for argument in arguments.split(", "):
        if "List[str]" in argument or "words" in argument:
            examples.append(str(random.sample(["apple", "tree", "sky", "on", "Hello", "abc"], 3)))
        elif "List" in argument or "l" in argument.split(":")[0]:
            examples.append(str([random.randint(-9, 30) for _ in range(random.randint(2, 5))]))
        elif "str" in argument or "text" in argument or argument == "s":
            examples.append(repr(random.choice(["hello", "racecar", "abcde", "The quick fox", "aabbc"])))
        else:
            examples.append(str(random.randint(0, 50)))
    return ", ".join(examples)


def word_runs(text: str, words: int = OVERLAP_WORDS) -> set[tuple[str, ...]]:
    """Every run of so many consecutive words, case and punctuation aside."""
    return set(_runs(_words(text), words))


def forbidden_runs(sets: Mapping[str, Sequence[str]]) -> frozenset[tuple[str, ...]]:
    """Runs of words of evaluation prompts, none of which touches what a set's format puts into most of them.

    Args:
        sets: texts of every prompt of each evaluation set.
    """
    found: set[tuple[str, ...]] = set()
    for texts in sets.values():
        counts = Counter(run for text in texts for run in word_runs(text))
        common = {run for run, count in counts.items() if count > max(1, COMMON_SHARE * len(texts))}
        for text in texts:
            for part in _outside(_words(text), common):
                found.update(_runs(part, OVERLAP_WORDS))
    return frozenset(found)


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def _outside(words: Sequence[str], common: set[tuple[str, ...]]) -> list[list[str]]:
    """The pieces of a text between the runs that are common."""
    covered = [False] * len(words)
    for start, run in enumerate(_runs(words, OVERLAP_WORDS)):
        if run in common:
            covered[start : start + OVERLAP_WORDS] = [True] * OVERLAP_WORDS
    pieces: list[list[str]] = [[]]
    for word, hidden in zip(words, covered, strict=True):
        if hidden:
            pieces.append([])
        else:
            pieces[-1].append(word)
    return pieces


def overlapping(texts: Iterable[str], forbidden: frozenset[tuple[str, ...]]) -> list[int]:
    """Numbers of the texts that share a run of words with an evaluation prompt."""
    return [number for number, text in enumerate(texts) if not forbidden.isdisjoint(word_runs(text))]
