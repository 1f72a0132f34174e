from __future__ import annotations

from collections.abc import Sequence

import pytest

from reference_mechanisms.engine.stops import Cut, Ending, cut, ending_of, visible_text
from reference_mechanisms.request import Sampling

STOP = 99


def letters(ids: Sequence[int]) -> str:
    """Token n is the n-th letter; the stop token is special and has no text."""
    return "".join(chr(ord("a") + token) for token in ids if token != STOP)


def ending(*stop: str, max_tokens: int = 20, min_tokens: int = 0) -> Ending:
    return Ending(frozenset({STOP}), stop, min_tokens, max_tokens)


@pytest.mark.parametrize(
    ("before", "block", "rules", "expected"),
    [
        pytest.param((0,), (1, 2), ending(), Cut((1, 2)), id="goes on"),
        pytest.param(
            (0,), (1, STOP, 3, 4), ending(), Cut((1, STOP), "stop", STOP), id="stop token in the block"
        ),
        pytest.param(
            (),
            (10, 11, STOP, 13, 14, 15),
            ending(max_tokens=5),
            Cut((10, 11, STOP), "stop", STOP),
            id="stop token before the length",
        ),
        pytest.param(
            (0, 1), (2, 3, STOP), ending(max_tokens=4), Cut((2, 3), "length"), id="length before the stop"
        ),
        pytest.param(
            (0, 1),
            (2, STOP),
            ending(max_tokens=4),
            Cut((2, STOP), "stop", STOP),
            id="stop token as the last one allowed",
        ),
        pytest.param(
            (0,) * 5, (1,) * 8, ending(max_tokens=8), Cut((1, 1, 1), "length"), id="block over the length"
        ),
        pytest.param(
            (0,),
            (1, 2, 3, 4, 5, 6, 7),
            ending("cd"),
            Cut((1, 2, 3), "stop", "cd"),
            id="stop string early in the block",
        ),
        pytest.param(
            (0, 2),
            (3, 4, 5),
            ending("cd"),
            Cut((3,), "stop", "cd"),
            id="stop string begun in an earlier step",
        ),
        pytest.param(
            (0,),
            (1, 2, 3),
            ending("d", "cd"),
            Cut((1, 2, 3), "stop", "cd"),
            id="of two strings complete at once the one that begins first",
        ),
        pytest.param(
            (0,),
            (1, 2, STOP, 3),
            ending("cd"),
            Cut((1, 2, STOP), "stop", STOP),
            id="stop token before a stop string",
        ),
        pytest.param(
            (0,),
            (2, 3, STOP),
            ending("cd", max_tokens=3),
            Cut((2, 3), "stop", "cd"),
            id="stop string as the last one allowed",
        ),
        pytest.param((0, STOP), (1, 2), ending(), Cut((1, 2)), id="what was before is not looked at again"),
        pytest.param(
            (),
            (STOP, 1, STOP, 2),
            ending(min_tokens=2),
            Cut((STOP, 1, STOP), "stop", STOP),
            id="no stop token within min_tokens",
        ),
        pytest.param(
            (),
            (2, 3, 2, 3, 4),
            ending("cd", min_tokens=2),
            Cut((2, 3, 2, 3), "stop", "cd"),
            id="no stop string within min_tokens",
        ),
    ],
)
def test_a_block_is_cut_at_the_first_token_that_ends_the_output(
    before: Sequence[int], block: Sequence[int], rules: Ending, expected: Cut
) -> None:
    assert cut(before, block, rules, letters) == expected


@pytest.mark.parametrize("size", range(1, 9))
def test_the_cut_does_not_depend_on_how_tokens_were_grouped(size: int) -> None:
    tokens = (0, 1, 2, 9, 4, 5, 2, 3, 7, STOP, 8, 8)
    for rules in (ending(), ending("cd"), ending("cd", max_tokens=5), ending("cd", "h", min_tokens=8)):
        emitted: list[int] = []
        last = Cut(())
        for start in range(0, len(tokens), size):
            last = cut(emitted, tokens[start : start + size], rules, letters)
            emitted.extend(last.token_ids)
            if last.finish_reason:
                break
        whole = cut((), tokens, rules, letters)
        assert tuple(emitted) == whole.token_ids
        assert last[1:] == whole[1:]


@pytest.mark.parametrize(
    ("ids", "rules", "text"),
    [
        pytest.param((0, 1, STOP), ending(), "ab", id="without the stop token"),
        pytest.param((0, 2, 3), ending("cd"), "a", id="without the stop string"),
        pytest.param((0, 1), ending("cd"), "ab", id="whole"),
        pytest.param(
            (2, 3, 0, 2, 3), ending("cd", min_tokens=2), "cda", id="a string within min_tokens stays"
        ),
    ],
)
def test_visible_text_ends_where_the_stop_begins(ids: Sequence[int], rules: Ending, text: str) -> None:
    assert visible_text(ids, rules, letters) == text


def test_a_stop_string_over_a_character_of_several_tokens_waits_for_the_last_of_them() -> None:
    parts = {0: b"x", 1: b"\xc3", 2: b"\xa9", 3: b"y"}

    def decode(ids: Sequence[int]) -> str:
        return b"".join(parts[token] for token in ids).decode("utf-8", errors="replace")

    rules = Ending(frozenset(), ("\u00e9",), 0, 20)
    assert cut((0,), (1, 2, 3), rules, decode) == Cut((1, 2), "stop", "\u00e9")


def test_ignore_eos_leaves_the_requests_own_stop_tokens() -> None:
    sampling = Sampling(max_tokens=4, ignore_eos=True, stop_token_ids=(7,))
    assert ending_of(sampling, (2,)).stop_ids == {7}
    assert ending_of(Sampling(max_tokens=4, stop_token_ids=(7,)), (2,)).stop_ids == {2, 7}
