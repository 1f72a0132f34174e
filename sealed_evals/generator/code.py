"""Code tasks: a pipeline of filter, map and reduction, told in words, with examples that were really run.

Which pipeline a task asks for, with which bounds, hangs on the secret seed: the family of tasks can be
known, the variant cannot.
"""

# ruff: noqa: E501 - the sentences of a prompt are kept whole

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from sealed_evals.generator.words import pick


class _Part(NamedTuple):
    """A part of a pipeline: its word in the function's name, its words in the docstring, and itself."""

    name: str
    text: str
    run: Callable[[Any], Any]


class _Domain(NamedTuple):
    """What the lists hold."""

    kind: str  # in annotations
    nouns: tuple[str, ...]  # of the argument
    sample: Callable[[Random], list[Any]]
    filters: Callable[[Random], list[_Part]]
    maps: Callable[[Random], list[_Part]]
    reductions: Callable[[Random], list[tuple[_Part, str]]]  # with the annotation of the result


def function_task(rng: Random) -> str:
    """A signature with a docstring and examples, to be completed."""
    domain = rng.choice(_DOMAINS)
    kept, mapped = rng.choice(domain.filters(rng)), rng.choice(domain.maps(rng))
    reduction, result = rng.choice(domain.reductions(rng))
    noun = rng.choice(domain.nouns)
    name = "_".join(filter(None, (reduction.name, kept.name, mapped.name, noun)))

    def run(values: Sequence[Any]) -> Any:
        return reduction.run([mapped.run(value) for value in values if kept.run(value)])

    lead = pick(
        rng,
        f"Given a list of {noun}, take those {kept.text}, {mapped.text}, and return {reduction.text}.",
        f"Keep only the {noun} {kept.text}. Then {mapped.text}. The result is {reduction.text}.",
        f"From the {noun} {kept.text}, {mapped.text}; return {reduction.text}.",
        f"Return {reduction.text} after the following steps: drop all {noun} except those {kept.text}, and then "
        f"{mapped.text}.",
    )
    tail = pick(
        rng,
        "",
        "The order of the input is kept.",
        "An empty list is a valid input.",
        "The input must not be changed.",
        "Do not import anything.",
        "The list may hold the same value several times.",
    )
    examples = [domain.sample(rng) for _ in range(rng.randint(1, 3))]
    shown = "\n".join(f"    >>> {name}({values!r})\n    {run(values)!r}" for values in examples)
    return (
        f"def {name}({noun}: list[{domain.kind}]) -> {result}:\n"
        f'    """ {_wrapped(f"{lead} {tail}")}\n{shown}\n    """\n'
    )


def sentence_task(rng: Random) -> str:
    """One sentence that asks for a function."""
    domain = rng.choice(_DOMAINS)
    kept, (reduction, _) = rng.choice(domain.filters(rng)), rng.choice(domain.reductions(rng))
    mapped, noun = rng.choice(domain.maps(rng)), rng.choice(domain.nouns)
    return pick(
        rng,
        f"Write a function to find {reduction.text} of a list of {noun}.",
        f"Write a function to {mapped.text} in a list of {noun}.",
        f"Write a Python function to get all {noun} {kept.text}.",
        f"Write a Python function that gets a list of {noun} and returns {reduction.text} of those {kept.text}.",
        f"Implement a function to {mapped.text} for all {noun} {kept.text}.",
        f"Write a function that finds {reduction.text} once you {mapped.text} in a list of {noun}.",
        f"Create a function which, for the {noun} {kept.text}, gives {reduction.text}.",
        f"In Python, {mapped.text} for a list of {noun} and return {reduction.text}.",
    )


def _wrapped(text: str, width: int = 96) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n    ".join([*lines, line])


def _int_filters(rng: Random) -> list[_Part]:
    n, low, step = rng.randint(3, 9), rng.randint(-5, 20), rng.randint(5, 40)
    return [
        _Part("multiple", f"that are multiples of {n}", lambda x: x % n == 0),
        _Part("large", f"greater than {low}", lambda x: x > low),
        _Part("banded", f"between {low} and {low + step}, both included", lambda x: low <= x <= low + step),
        _Part("odd", "that are odd", lambda x: x % 2 == 1),
        _Part("distant", f"whose distance from {low} is at least {n}", lambda x: abs(x - low) >= n),
        _Part("last_digit", f"whose last digit is below {n}", lambda x: abs(x) % 10 < n),
        _Part("square", "that are perfect squares", lambda x: x >= 0 and round(x**0.5) ** 2 == x),
        _Part("digit_sum", f"whose digits add up to at most {n + 3}", lambda x: _digits(x) <= n + 3),
    ]


def _int_maps(rng: Random) -> list[_Part]:
    k, c = rng.randint(2, 9), rng.randint(1, 30)
    return [
        _Part("scaled", f"multiply each by {k}", lambda x: x * k),
        _Part("shifted", f"subtract {c} from each", lambda x: x - c),
        _Part("remainder", f"replace each by its remainder modulo {k}", lambda x: x % k),
        _Part("halved", "divide each by two, rounding down", lambda x: x // 2),
        _Part("digits", "replace each by the sum of its digits", _digits),
        _Part("clipped", f"replace values above {c} by {c}", lambda x: min(x, c)),
        _Part("affine", f"turn each value x into {k} * x + {c}", lambda x: k * x + c),
    ]


def _int_reductions(rng: Random) -> list[tuple[_Part, str]]:
    n = rng.randint(2, 4)
    return [
        (_Part("sum", "the sum", sum), "int"),
        (_Part("count", "how many different values there are", lambda v: len(set(v))), "int"),
        (_Part("spread", "the largest minus the smallest (0 for no values)", _spread), "int"),
        (_Part("top", f"the {n} largest values, largest first", lambda v: sorted(v)[::-1][:n]), "list[int]"),
        (_Part("every", f"every {n}th value, starting with the first", lambda v: v[::n]), "list[int]"),
        (
            _Part(
                "running", "the list of running totals", lambda v: [sum(v[: i + 1]) for i in range(len(v))]
            ),
            "list[int]",
        ),
        (_Part("alternating", "the alternating sum, the first value positive", _alternating), "int"),
        (
            _Part("pairs", "the differences between neighbours", lambda v: [b - a for a, b in _pairs(v)]),
            "list[int]",
        ),
    ]


def _word_filters(rng: Random) -> list[_Part]:
    n, letter = rng.randint(3, 6), rng.choice("aeiort")
    return [
        _Part("long", f"with at least {n} letters", lambda w: len(w) >= n),
        _Part("containing", f"that contain the letter {letter!r}", lambda w: letter in w),
        _Part("without", f"without the letter {letter!r}", lambda w: letter not in w),
        _Part("even", "of even length", lambda w: len(w) % 2 == 0),
        _Part("vowel", "that start with a vowel", lambda w: w[0] in "aeiou"),
        _Part("plain", "in which no letter comes twice", lambda w: len(set(w)) == len(w)),
        _Part("short", f"with fewer than {n + 2} letters", lambda w: len(w) < n + 2),
    ]


def _word_maps(rng: Random) -> list[_Part]:
    n, mark = rng.randint(1, 4), rng.choice("*#-+")
    return [
        _Part("reversed", "reverse each of them", lambda w: w[::-1]),
        _Part("cut", f"cut each to its first {n} letters", lambda w: w[:n]),
        _Part("marked", f"put {mark!r} behind each", lambda w: w + mark),
        _Part("capital", "turn each into upper case", str.upper),
        _Part("rotated", "move the first letter of each to its end", lambda w: w[1:] + w[:1]),
        _Part(
            "vowelless", "remove the vowels from each", lambda w: "".join(c for c in w if c not in "aeiou")
        ),
    ]


def _word_reductions(rng: Random) -> list[tuple[_Part, str]]:
    n, glue = rng.randint(2, 4), rng.choice(" /_,")
    return [
        (_Part("joined", f"one string, joined with {glue!r}", glue.join), "str"),
        (_Part("letters", "the total number of characters", lambda v: sum(map(len, v))), "int"),
        (_Part("sorted", "them in alphabetical order", sorted), "list[str]"),
        (_Part("by_length", "a dictionary from length to how many have it", _by_length), "dict[int, int]"),
        (_Part("longest", "the longest one, the first if there are several ('' for none)", _longest), "str"),
        (_Part("first", f"the first {n} of them", lambda v: v[:n]), "list[str]"),
        (_Part("initials", "a string of their first characters", lambda v: "".join(w[:1] for w in v)), "str"),
    ]


_WORDS = (
    *(
        "anchor",
        "bramble",
        "cedar",
        "dune",
        "ember",
        "fjord",
        "gravel",
        "harbour",
        "inlet",
        "juniper",
        "kelp",
    ),
    *("lantern", "meadow", "nettle", "orchid", "pebble", "quartz", "river", "saffron", "thistle", "umber"),
)
_DOMAINS = (
    _Domain(
        "int",
        ("readings", "scores", "prices", "levels", "deposits", "distances", "ages", "votes"),
        lambda rng: [rng.randint(-9, 49) for _ in range(rng.randint(3, 7))],
        _int_filters,
        _int_maps,
        _int_reductions,
    ),
    _Domain(
        "str",
        ("labels", "words", "names", "tags", "codes", "titles", "towns"),
        lambda rng: rng.sample(_WORDS, rng.randint(3, 5)),
        _word_filters,
        _word_maps,
        _word_reductions,
    ),
)


def _digits(value: int) -> int:
    return sum(map(int, str(abs(value))))


def _spread(values: list[int]) -> int:
    return max(values) - min(values) if values else 0


def _alternating(values: list[int]) -> int:
    return sum(value if index % 2 == 0 else -value for index, value in enumerate(values))


def _pairs(values: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(values))


def _longest(words: list[str]) -> str:
    return max(words, key=len, default="")


def _by_length(words: list[str]) -> dict[int, int]:
    return {length: sum(len(w) == length for w in words) for length in sorted({len(w) for w in words})}
