"""Foreign text: one line, printable, bounded."""

from __future__ import annotations

import pytest

from harness.report.text import LIMIT, flat, plain, shorten, told


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n b\t\u2028c", "a b c"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("\x00", "\\x00"),
        ("naïve 漢字 🙂", "naïve 漢字 🙂"),
    ],
    ids=["line ends", "terminal escape", "direction mark", "lone surrogate", "zero", "real text"],
)
def test_text_is_one_printable_line(value: str, shown: str) -> None:
    assert plain(value) == shown


@pytest.mark.parametrize("value", ["x" * 5000, "\x1b" * 1999, "a " * 1500], ids=["long", "controls", "words"])
def test_a_long_text_is_cut_once_and_says_so(value: str) -> None:
    once = plain(value)
    assert len(once) <= LIMIT
    assert once.endswith(f"... (cut, {len(value)} characters)")
    assert plain(once) == once


def test_a_text_at_the_limit_is_whole() -> None:
    assert plain("x" * LIMIT) == "x" * LIMIT


def test_a_label_keeps_both_ends_of_a_name() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("candidate-with-8-drafts", 11) == "candi…rafts"


@pytest.mark.parametrize("width", [7, 8, 17])
def test_a_label_has_at_most_its_width(width: int) -> None:
    assert len(shorten("abcdefghijklmnopqrstuvwxyz", width)) == width


def test_values_are_told_in_words() -> None:
    value: dict[str, object] = {
        "a": None,
        "b": True,
        "c": 0.1 + 0.2,
        "d": [1, 2],
        "e": {},
        "f": [],
        "g": 12_345_678,
    }
    assert told(value) == "a unknown, b yes, c 0.3, d 1; 2, e -, f none, g 12345678"


def test_nested_facts_become_spaced_names_in_their_own_order() -> None:
    value = {"cpu": {"model": "x", "flags": ["b", "a"]}, "gpus": [{"name": "g"}, {"name": "h"}], "none": {}}
    assert flat(value) == [
        ("cpu model", "x"),
        ("cpu flags", "b; a"),
        ("gpus 0 name", "g"),
        ("gpus 1 name", "h"),
        ("none", "-"),
    ]
