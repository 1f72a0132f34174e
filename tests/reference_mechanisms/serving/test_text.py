"""Pieces of a stream against the text of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from reference_mechanisms.engine.stops import Cut, cut, ending_of, visible_text
from reference_mechanisms.request import Sampling
from reference_mechanisms.serving.text import HuggingFaceText, TextStream
from tests.harness.tiny import EOS, write_tokenizer


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceText:
    folder: Path = write_tokenizer(tmp_path_factory.mktemp("text"))
    return HuggingFaceText(AutoTokenizer.from_pretrained(folder))


E_ACUTE, EURO = (127, 102), (158, 224, 105)  # bytes of é and €
TOKENS = st.one_of(
    *(st.sampled_from(ids) for ids in ((64, 65), (64, 65), (*E_ACUTE, *EURO, EOS)))  # a, b, pieces
)
PIECES = st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=12)
STOPS = st.lists(st.sampled_from(("ab", "ba", "aab", "abba", "é", "b€")), max_size=3)


@settings(max_examples=150, deadline=None)
@example(blocks=[[64], [65]], stops=["ab"], least=0)
@given(blocks=PIECES, stops=STOPS, least=st.integers(0, 4))
def test_pieces_are_the_whole(
    text: HuggingFaceText, blocks: list[list[int]], stops: list[str], least: int
) -> None:
    sampling = Sampling(max_tokens=100, min_tokens=least, stop=tuple(stops))
    ending = ending_of(sampling, (EOS,))
    stream, told, emitted = TextStream(text.decode, stops), "", list[int]()
    for number, block in enumerate(blocks):
        found = cut(emitted, block, ending, text.decode)
        if number == len(blocks) - 1 and found.finish_reason is None:
            found = Cut(found.token_ids, "length")
        emitted += found.token_ids
        if found.finish_reason is None:
            told += stream.push(found.token_ids)
            continue
        whole = visible_text(emitted, ending, text.decode)
        assert whole.startswith(told)
        assert told + stream.finish(whole) == whole
        return


def test_what_is_certain_is_told_at_once(text: HuggingFaceText) -> None:
    a, b, c = text.encode("abc", special=False)
    stream = TextStream(text.decode, ("cd",))
    assert stream.push([a, b]) == "ab"
    assert stream.push([c]) == ""  # may begin the stop string
    assert stream.push([a]) == "ca"


def test_half_a_character_waits(text: HuggingFaceText) -> None:
    first, second = text.encode("é", special=False)
    stream = TextStream(text.decode, ())
    assert stream.push([first]) == ""
    assert stream.push([second]) == "é"
