from __future__ import annotations

import msgspec
import pytest

from harness.errors import UsageError
from harness.oracle.explain import Scene, emitted_by, explain, explain_divergence
from harness.paths import RunFolder
from harness.protocols import ForcedPosition
from harness.records import DecodeStep, Response
from harness.storage import read_lines
from tests.harness.oracle.runs import TinyRun, edit_response
from tests.harness.oracle.stock import position, response, second, third


def step(drafted: int, accepted: int, emitted: int) -> DecodeStep:
    return DecodeStep(
        num_draft_tokens=drafted, num_accepted_tokens=accepted, num_emitted_tokens=emitted, at_ns=20
    )


BLOCKS = response([0, 1, 2, 3, 4, 5, 6], steps=(step(3, 2, 3), step(2, 2, 3), step(0, 0, 1))[:2])
PLAIN = response([0, 1, 1, 3], steps=(step(0, 0, 1), step(2, 1, 2)))


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        (0, "emitted by the prefill"),
        (1, "accepted draft token 1 of verify step 1 (3 drafted, 2 accepted)"),
        (2, "accepted draft token 2 of verify step 1 (3 drafted, 2 accepted)"),
        (3, "the recovered token of verify step 1 (3 drafted, 2 accepted)"),
        (4, "accepted draft token 1 of verify step 2 (2 drafted, 2 accepted)"),
        (6, "the bonus token of verify step 2 (2 drafted, 2 accepted)"),
    ],
)
def test_a_token_is_traced_to_the_step_that_emitted_it(index: int, wanted: str) -> None:
    assert emitted_by(BLOCKS, index) == wanted


def test_a_step_without_drafts_is_told_as_one() -> None:
    assert emitted_by(PLAIN, 1).startswith("the token of a step without drafts of verify step 1")


def told(seen: ForcedPosition, index: int = 2, one: Response = PLAIN) -> str:
    scene = Scene(response=one, index=index, position=seen, best=((2, 5.0), (1, 4.9)), margin=0.5)
    return explain_divergence(scene, lambda token: f"<{token}>")


def test_a_divergence_is_told_with_both_tokens_the_gap_and_stocks_best() -> None:
    text = told(third(1, 1.0))
    for part in (
        "position 2 of 4",
        "'<0><1>' ['<1>'] '<3>'",
        "'<1>' (1)",
        "'<2>' (2)",
        "gap 1.0000",
        "margin 0.5",
    ):
        assert part in text
    assert "stock's best: '<2>' (2) 5.000, '<1>' (1) 4.900" in text


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (second(1, 0.1), "near tie: two shapes of stock differ by as much"),
        (third(5, 0.1), "rounding can only swap the two best"),
        (second(5, 3.0), "no rounding explains this"),
        (third(1, 3.0), "repeats the one before it"),
    ],
    ids=["near tie", "third", "far", "repeated (B09)"],
)
def test_what_a_divergence_means_depends_on_what_stock_saw(seen: ForcedPosition, words: str) -> None:
    assert words in told(seen)


def test_a_run_that_agrees_is_told_so(folder: RunFolder, tiny: TinyRun) -> None:
    text = explain(folder.root, "own/1", stock=tiny.stock)
    assert text.count("every token is stock's argmax") == 2
    assert "prompt own/1" in text
    assert "name a colour" in text


def test_a_flipped_token_is_shown_where_it_is(folder: RunFolder, tiny: TinyRun) -> None:
    before = list(read_lines(folder.responses, Response))[4]
    wrong = (before.token_ids[5] + 1) % 256
    edit_response(folder, 4, token_ids=(*before.token_ids[:5], wrong, *before.token_ids[6:]), text=None)
    text = explain(folder.root, "own/1", "stock", stock=tiny.stock)
    assert "position 5 of 10" in text
    assert f"emitted        {tiny.tokenizer.token_text(wrong)!r} ({wrong})" in text
    assert f"stock's argmax {tiny.tokenizer.token_text(before.token_ids[5])!r}" in text
    assert "launch 0 block 0), 10 tokens" in text
    assert "arm ar" not in text


def test_an_ending_that_is_not_explained_is_shown(folder: RunFolder, tiny: TinyRun) -> None:
    edit_response(folder, 4, finish_reason="stop")
    assert "ending not explained at position 9" in explain(folder.root, "own/1", "stock", stock=tiny.stock)


def test_a_token_outside_of_the_vocabulary_is_shown_and_no_crash(folder: RunFolder, tiny: TinyRun) -> None:
    before = list(read_lines(folder.responses, Response))[4]
    edit_response(folder, 4, token_ids=(10**6, *before.token_ids[1:]), text=None)
    text = explain(folder.root, "own/1", "stock", stock=tiny.stock)
    first = text.split("\n\n")[1]
    assert "not in the vocabulary" in first
    assert "stock's argmax" not in first, "nothing is forced along ids that are no tokens"


def test_an_unknown_prompt_or_arm_is_answered_with_the_known_ones(folder: RunFolder, tiny: TinyRun) -> None:
    with pytest.raises(UsageError, match="did you mean 'own/1'"):
        explain(folder.root, "own/1x", stock=tiny.stock)
    with pytest.raises(UsageError, match="it has ar, stock"):
        explain(folder.root, "own/1", "stok", stock=tiny.stock)


def test_a_position_seen_by_hand_can_be_shown() -> None:
    assert msgspec.to_builtins(position(1, (2, 5.0), (1, 4.0), 4.0))[0] == 1
