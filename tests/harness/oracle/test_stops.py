"""Text of ids here: 0 is "a", 1 is "b", ...; EOS is 7 and not shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.oracle.stops import check_end, stop_rules
from harness.records import Response, Sampling
from tests.harness.oracle.stock import EOS, VOCAB, letters, response


def fault(one: Response, sampling: Sampling) -> str | None:
    found = check_end(one, stop_rules(sampling, (EOS,), VOCAB), letters)
    return None if found is None else found.fault


def ended(ids: list[int], reason: str, **more: Any) -> Response:
    return response(ids, finish_reason=reason, **more)


PLAIN = Sampling(max_tokens=5)
STOPPED = Sampling(max_tokens=8, stop=("cd",))
LATE = Sampling(max_tokens=8, min_tokens=3, stop=("ab",))

GOOD = [
    pytest.param(ended([0, 1, 2, 3, 4], "length"), PLAIN, id="length"),
    pytest.param(ended([0, EOS], "stop"), PLAIN, id="eos"),
    pytest.param(ended([0, EOS], "stop", stop_reason=EOS), PLAIN, id="eos by name"),
    pytest.param(ended([EOS], "stop"), PLAIN, id="eos at once"),
    pytest.param(ended([0, 1, 2, 3, EOS], "stop"), PLAIN, id="eos at the cap"),
    pytest.param(
        ended([0, 4], "stop", stop_reason=4), Sampling(max_tokens=5, stop_token_ids=(4,)), id="stop id"
    ),
    pytest.param(ended([0, 2, 3], "stop", stop_reason="cd"), STOPPED, id="stop string"),
    pytest.param(ended([0, 2, 3], "stop"), STOPPED, id="stop string unnamed"),
    pytest.param(
        ended([0, EOS, 1, EOS, 2], "length"), Sampling(max_tokens=5, ignore_eos=True), id="eos ignored"
    ),
    pytest.param(ended([0, 1, 0, 1], "stop", stop_reason="ab"), LATE, id="stop string after min_tokens"),
    pytest.param(ended([0, 1, 4, 0, 1], "stop"), LATE, id="stop string within min_tokens does not count"),
    pytest.param(ended([0, 1, 2], "stop", text="ab"), Sampling(max_tokens=5, stop=("c",)), id="text is cut"),
    pytest.param(ended([0, EOS], "stop", text="a"), PLAIN, id="text without eos"),
    pytest.param(
        ended([0, 4], "stop", text="a"),
        Sampling(max_tokens=5, stop_token_ids=(4,)),
        id="text without stop id",
    ),
    pytest.param(ended([0, 1, 2, 3, 4], "length", text="abcde\ufffd"), PLAIN, id="character cut in half"),
]

BAD = [
    pytest.param(
        ended([0, EOS, 1, 2, 3], "length"), PLAIN, "not the last: 3 tokens", id="B01 eos in a block"
    ),
    pytest.param(
        ended([0, 2, 3, 4, 4], "stop", stop_reason="cd"),
        STOPPED,
        "complete here: 2 tokens",
        id="B02 early string",
    ),
    pytest.param(
        ended([2, 3, 4, 0], "stop", stop_reason="cd", text=""),
        STOPPED,
        "complete here: 2",
        id="B03 ids after cut",
    ),
    pytest.param(
        ended([0, 1, 2, 3, EOS], "length"), PLAIN, "ends with a stop, but", id="B05 max_tokens before stop"
    ),
    pytest.param(ended([0, 1, 2], "length"), PLAIN, "after 3 tokens, max_tokens is 5", id="B06 short"),
    pytest.param(ended([0, 1, 2, 3, 4, 5], "length"), PLAIN, "6 tokens were emitted", id="too many"),
    pytest.param(ended([0, 1], "stop"), PLAIN, "no stop token or stop string ends", id="stop without a stop"),
    pytest.param(
        ended([0, 1], "stop", stop_reason=1), PLAIN, "stop reason 1 is not", id="stop id not of the run"
    ),
    pytest.param(ended([0, EOS], "stop", stop_reason=1), PLAIN, "stop reason 1 is not", id="other stop id"),
    pytest.param(
        ended([0, 1], "stop", stop_reason="b"),
        STOPPED,
        "'b' is not a stop string",
        id="string not of the run",
    ),
    pytest.param(
        ended([0, 1], "stop", stop_reason="cd"),
        STOPPED,
        "'cd' is not a stop string",
        id="string not completed",
    ),
    pytest.param(
        ended([0, 1, 2, 3, 4], "length", stop_reason=4), PLAIN, "with stop reason 4", id="length with reason"
    ),
    pytest.param(
        ended([0, EOS], "stop"),
        Sampling(max_tokens=5, min_tokens=3),
        "is number 2, min_tokens is 3",
        id="eos early",
    ),
    pytest.param(
        ended([0, 2, 3, 2], "length"),
        Sampling(max_tokens=4, stop=("cd",)),
        "complete here",
        id="string missed",
    ),
    pytest.param(
        ended([0, 1, 2, 3], "length"),
        Sampling(max_tokens=4, stop=("cd",)),
        "ends with a stop, but",
        id="string at the cap",
    ),
    pytest.param(
        ended([0, EOS], "stop"),
        Sampling(max_tokens=5, ignore_eos=True),
        "no stop token or stop string",
        id="eos obeyed although ignored",
    ),
    pytest.param(ended([0, EOS], "stop", text="b"), PLAIN, "the text 'b' is not that", id="other text"),
    pytest.param(
        ended([0, 1, 2], "stop", text="abc"),
        Sampling(max_tokens=5, stop=("c",)),
        "the text 'abc'",
        id="text not cut",
    ),
    pytest.param(
        ended([0, VOCAB], "length"), Sampling(max_tokens=2), "not in the vocabulary", id="no such token"
    ),
    pytest.param(
        ended([0, -1], "length"), Sampling(max_tokens=2), "not in the vocabulary", id="negative token"
    ),
]


@pytest.mark.parametrize(("one", "sampling"), GOOD)
def test_an_ending_that_the_ids_explain_is_no_fault(one: Response, sampling: Sampling) -> None:
    assert fault(one, sampling) is None


@pytest.mark.parametrize(("one", "sampling", "match"), BAD)
def test_an_ending_that_the_ids_do_not_explain_is_a_fault(
    one: Response, sampling: Sampling, match: str
) -> None:
    found = fault(one, sampling)
    assert found is not None
    assert match in found


def test_no_token_at_all_is_a_fault() -> None:
    found = fault(response([], finish_reason="stop", prefill_tokens=0, steps=()), PLAIN)
    assert found is not None
    assert "no token" in found


def test_a_fault_says_where_it_is() -> None:
    one = response([0, EOS, 1, 2, 3], arm="stock", prompt="own/p1", launch=1, block=2)
    found = check_end(one, stop_rules(PLAIN, (EOS,), VOCAB), letters)
    assert found is not None
    assert (found.arm, found.prompt_id, found.launch, found.block) == ("stock", "own/p1", 1, 2)
    assert found.position == 1


def test_a_text_of_other_ids_is_placed_at_the_first_token_that_differs() -> None:
    one = response([0, 1, 2, 3, 4], text="abXde")
    found = check_end(one, stop_rules(PLAIN, (EOS,), VOCAB), letters)
    assert found is not None
    assert found.position == 2


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), st.integers(1, 12), st.booleans())
def test_an_engine_that_cuts_rightly_never_has_a_fault(stream: list[int], cap: int, strings: bool) -> None:
    sampling = Sampling(max_tokens=cap, stop=("ab", "c") if strings else ())
    stream = (stream * 12)[:cap]
    for n in range(1, cap + 1):
        ids = stream[:n]
        whole = letters(ids)
        hit = min((whole.find(s) for s in sampling.stop if s in whole), default=-1)
        if ids[-1] == EOS or hit >= 0:
            text = whole[:hit] if hit >= 0 else whole
            assert fault(ended(ids, "stop", text=text), sampling) is None
            return
    assert fault(ended(stream, "length", text=letters(stream)), sampling) is None


@given(
    st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=6),
    st.lists(st.integers(0, VOCAB - 1), min_size=1),
)
def test_tokens_after_eos_are_always_a_fault(before: list[int], after: list[int]) -> None:
    ids = [*before, EOS, *after]
    sampling = Sampling(max_tokens=len(ids))
    assert fault(ended(ids, "length"), sampling) is not None
    assert fault(ended(ids, "stop"), sampling) is not None
