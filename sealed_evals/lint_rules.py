"""Lint rules on the prompts of a set: what makes a benchmark lie although its file is well formed.

Each rule takes the rows of a set and yields findings. Thresholds are set so that no rule fires on
GSM8K, MATH-500, HumanEval, MBPP and MT-Bench, except for MBPP's one pair of identical prompts. Pure.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from harness.codec import Record

SHORT_LEAK = 12  # characters of a reference solution inside the prompt: worth a look
LONG_LEAK = 40  # no accident
OUTLIER_FACTOR = 20  # times longer or shorter than the median prompt
OUTLIER_ROWS = 10  # fewer prompts have no typical length
DEGENERATE_BYTES = 200  # shorter prompts compress badly whatever they say
DEGENERATE_ZLIB = 0.2  # compressed size over size; the five public sets stay above 0.27
DEGENERATE_WORDS = 40
DEGENERATE_REPEATS = 0.4  # share of repeated 4-grams of words; the five public sets stay below 0.17

_WHOLE_PLACEHOLDER = re.compile(
    r"(todo|tbd|fixme|n/?a|none|null|nan|undefined|placeholder|string|prompt|text|test|example|foo|bar"
    r"|asdf\w*|x{2,}|\.{2,}|…|-+|_+|\?+|\{\{?[\w .-]+\}?\}|<[\w .-]+>|\[[\w .-]+\]|lorem ipsum.*)[.!]?",
    re.IGNORECASE | re.DOTALL,
)
_PLACEHOLDER_INSIDE = re.compile(
    r"\bdata should be fetched\b|\blorem ipsum dolor\b|\byour (prompt|question|text) here\b"
    r"|[\[<{]+\s*(insert|placeholder|todo|your (prompt|question|text))\b[^\]>}\n]{0,60}[\]>}]+",
    re.IGNORECASE,
)
_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")  # GSM8K's solutions carry them, copies of them often do not


class Finding(Record, frozen=True):
    """One thing the linter found."""

    rule: str
    severity: Literal["error", "warning"]
    row: int | None  # line or array element, counted from 1; None: the file as a whole
    message: str


class LintRow(NamedTuple):
    """What the rules look at in one row."""

    number: int
    raw: bytes
    turns: tuple[str, ...]
    answers: tuple[str, ...]  # reference solutions the row carries

    @property
    def text(self) -> str:
        """All turns, as one text."""
        return "\n".join(self.turns)


Rule = Callable[[Sequence[LintRow]], Iterator[Finding]]


def duplicate_prompts(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """Identical prompts count twice; nearly identical ones are easily taken for new."""
    exact: dict[tuple[str, ...], int] = {}
    near: dict[str, int] = {}
    for row in rows:
        folded = _fold(unicodedata.normalize("NFKC", row.text))
        if row.turns in exact:
            yield _warn("duplicate-prompt", row, f"same prompt as row {exact[row.turns]}")
        elif folded in near:
            reason = "differs only in case, white space or Unicode form from row"
            yield _warn("near-duplicate", row, f"{reason} {near[folded]}")
        exact.setdefault(row.turns, row.number)
        near.setdefault(folded, row.number)


def placeholders(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """A stand-in for text that was to be filled in or fetched later."""
    for row in rows:
        for turn in row.turns:
            found = _WHOLE_PLACEHOLDER.fullmatch(turn.strip()) or _PLACEHOLDER_INSIDE.search(turn)
            if found is not None:
                message = f"placeholder instead of a prompt: {found[0][:60]!r}"
                yield Finding(rule="placeholder", severity="error", row=row.number, message=message)
                break


def text_hazards(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """Characters that tools on the way to the target are known to change or to split at."""
    for row in rows:
        if "\r\n" in row.text:
            yield _warn("crlf-in-text", row, "CR LF inside the prompt; engines tokenise it unlike LF")
        if b"\xe2\x80\xa8" in row.raw or b"\xe2\x80\xa9" in row.raw:
            yield _warn("line-separator", row, "raw U+2028 or U+2029; str.splitlines() breaks the row in two")
        if not unicodedata.is_normalized("NFC", row.text):
            yield _warn("not-nfc", row, "not in NFC; a tool that normalises sends another prompt")


def answer_leaks(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """A reference solution that stands in its own prompt: a gift to n-gram drafters.

    Compared without case, white space and calculator notes. Solutions below `SHORT_LEAK`
    characters are not looked for: "2" stands in most prompts.
    """
    for row in rows:
        text = _fold(_CALCULATOR_NOTE.sub("", row.text))
        answers = (_fold(_CALCULATOR_NOTE.sub("", answer)) for answer in row.answers)
        leaked = max((a for a in answers if len(a) >= SHORT_LEAK and a in text), key=len, default="")
        if leaked:
            message = f"holds its own reference solution ({len(leaked)} characters): {leaked[:40]!r}"
            severity: Literal["error", "warning"] = "error" if len(leaked) >= LONG_LEAK else "warning"
            yield Finding(rule="answer-leak", severity=severity, row=row.number, message=message)


def length_outliers(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """Prompts of another order of length: cut off, or several glued together."""
    if len(rows) < OUTLIER_ROWS:
        return
    median = statistics.median(len(row.text) for row in rows)
    for row in rows:
        length = len(row.text)
        if length > OUTLIER_FACTOR * median or length * OUTLIER_FACTOR < median:
            message = f"{length} characters, the median prompt has {median:g}"
            yield _warn("length-outlier", row, message)


def degenerate_prompts(rows: Sequence[LintRow]) -> Iterator[Finding]:
    """Filler: text that repeats itself, which any drafter guesses and no user writes."""
    for row in rows:
        data = row.text.encode()
        ratio = len(zlib.compress(data, 9)) / max(1, len(data))
        repeats = repeated_share(row.text.split())
        if len(data) >= DEGENERATE_BYTES and ratio < DEGENERATE_ZLIB:
            yield _warn("degenerate", row, f"compresses to {ratio:.0%} of its size: filler?")
        elif repeats is not None and repeats > DEGENERATE_REPEATS:
            yield _warn("degenerate", row, f"{repeats:.0%} of its 4-grams are repetitions: filler?")


RULES: tuple[Rule, ...] = (
    duplicate_prompts,
    placeholders,
    text_hazards,
    answer_leaks,
    length_outliers,
    degenerate_prompts,
)


def repeated_share(words: Sequence[str]) -> float | None:
    """Share of 4-grams that occurred before in the text; None below `DEGENERATE_WORDS` words."""
    if len(words) < DEGENERATE_WORDS:
        return None
    grams = [tuple(words[start : start + 4]) for start in range(len(words) - 3)]
    return 1 - len(set(grams)) / len(grams)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _warn(rule: str, row: LintRow, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", row=row.number, message=message)
