"""Replies of servers that give text only: tokenised once, counted in full, in the chunks they came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.backends.openai_server import read_reply
from harness.load.client import Reply, TimedChunk
from harness.tokenize import PromptTokenizer
from tests.harness.tiny import EOS, write_tokenizer

TEXT = "say the word red and then count to ten, twice, and sing a song about it"


class CountingTokenizer(PromptTokenizer):
    """The real one, with a tally of what it was asked to tokenise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.characters = 0

    def encode_text(self, text: str) -> tuple[int, ...]:
        self.characters += len(text)
        return super().encode_text(text)

    def encode_with_starts(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self.characters += len(text)
        return super().encode_with_starts(text)


@pytest.fixture
def tokenizer(tmp_path: Path) -> CountingTokenizer:
    return CountingTokenizer(write_tokenizer(tmp_path))


def reply(parts: list[str], finish: str = "length") -> Reply:
    chunks = tuple(TimedChunk(text=part, token_ids=None, at_ns=n) for n, part in enumerate(parts, 1) if part)
    return Reply(sent_ns=0, end_ns=len(parts), chunks=chunks, finish_reason=finish)


@pytest.mark.parametrize("size", [1, 3, 7, 20, 100])
def test_all_cuts_of_a_text_give_the_same_ids_and_count_each_once(
    tokenizer: CountingTokenizer, size: int
) -> None:
    parts = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    found = read_reply(reply(parts), lambda: tokenizer)
    assert found.retokenised
    assert found.token_ids == tokenizer.encode_text(TEXT)
    assert sum(chunk.num_tokens for chunk in found.chunks) == len(found.token_ids)
    assert found.chunks[0].num_tokens >= 1
    assert all(chunk.num_tokens >= 0 for chunk in found.chunks)


def test_a_text_is_tokenised_once_however_many_chunks_it_came_in(tokenizer: CountingTokenizer) -> None:
    read_reply(reply(list(TEXT)), lambda: tokenizer)
    assert tokenizer.characters == len(TEXT)


def test_a_token_counts_to_the_chunk_in_which_it_begins(tokenizer: CountingTokenizer) -> None:
    ids, starts = tokenizer.encode_with_starts(TEXT)
    cut = starts[5]
    found = read_reply(reply([TEXT[:cut], TEXT[cut:]]), lambda: tokenizer)
    assert [chunk.num_tokens for chunk in found.chunks] == [5, len(ids) - 5]


def test_a_server_that_gives_ids_and_no_text_has_no_text_to_be_held_against_it(
    tokenizer: CountingTokenizer,
) -> None:
    chunks = tuple(TimedChunk(text="", token_ids=(n,), at_ns=n) for n in (3, 4))
    found = read_reply(Reply(sent_ns=0, end_ns=4, chunks=chunks, finish_reason="length"), lambda: tokenizer)
    assert (found.token_ids, found.text, found.retokenised) == ((3, 4), None, False)


def test_the_stop_token_that_has_no_text_is_put_back_into_the_last_chunk(
    tokenizer: CountingTokenizer,
) -> None:
    found = read_reply(reply([TEXT[:10], TEXT[10:]], "stop"), lambda: tokenizer)
    assert found.token_ids == (*tokenizer.encode_text(TEXT), EOS)
    assert sum(chunk.num_tokens for chunk in found.chunks) == len(found.token_ids)
