from __future__ import annotations

import gzip

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.codec import canonical_json, from_json
from harness.errors import DataError
from sealed_evals.catalogue import own_layout
from sealed_evals.merkle import prove_inclusion, verify_inclusion
from sealed_evals.seal import Difference, SealFile, check_seal, make_seal
from tests.sealed_evals import samples

LAYOUT = own_layout("prompt")
ROWS = [{"prompt": f"Question {number}?", "note": number} for number in range(6)]
DATA = samples.lines(*ROWS)
SEAL = make_seal("mine", DATA, LAYOUT, "file")


def brief(differences: tuple[Difference, ...]) -> list[tuple[str, int | None]]:
    return [(difference.kind, difference.row) for difference in differences]


def test_a_set_is_as_sealed() -> None:
    assert check_seal(SEAL, DATA, "file") == ()
    assert SEAL.count == 6
    assert SEAL.schema == "seal/1"


def test_a_seal_survives_its_file() -> None:
    assert from_json(canonical_json(SEAL), SealFile, "seal") == SEAL


def test_a_changed_row_is_named() -> None:
    changed = DATA.replace(b"Question 3?", b"Question 8?")

    differences = check_seal(SEAL, changed, "file")

    assert brief(differences) == [("changed", 4), ("prompts", None), ("bytes", None)]
    assert "mine/4" in differences[0].message
    assert SEAL.prompts_sha256 in differences[1].message
    assert SEAL.raw_sha256 in differences[2].message


def test_a_change_beside_the_prompt_is_named_too() -> None:
    changed = DATA.replace(b'"note": 3', b'"note": 4')

    assert brief(check_seal(SEAL, changed, "file")) == [("changed", 4), ("bytes", None)]


def test_an_added_row_does_not_make_the_following_ones_look_changed() -> None:
    added = samples.lines(*ROWS[:2], {"prompt": "new"}, *ROWS[2:])

    assert brief(check_seal(SEAL, added, "file"))[0] == ("added", 3)
    assert len(check_seal(SEAL, added, "file")) == 3


def test_a_removed_row_is_named_by_its_sealed_place() -> None:
    removed = samples.lines(*ROWS[:2], *ROWS[3:])

    differences = check_seal(SEAL, removed, "file")

    assert brief(differences) == [("removed", 3), ("prompts", None), ("bytes", None)]
    assert differences[0].message == "sealed row 3 is missing"


def test_two_rows_in_the_other_order_are_found() -> None:
    swapped = samples.lines(ROWS[1], ROWS[0], *ROWS[2:])

    assert {kind for kind, _ in brief(check_seal(SEAL, swapped, "file"))} == {
        "added",
        "removed",
        "prompts",
        "bytes",
    }


def test_a_change_between_the_rows_is_a_change_of_bytes() -> None:
    assert brief(check_seal(SEAL, DATA.removesuffix(b"\n"), "file")) == [("bytes", None)]
    assert brief(check_seal(SEAL, gzip.compress(DATA), "file")) == [("bytes", None)]


@samples.patient
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, change: int) -> None:
    data = bytearray(DATA)
    data[place] ^= change

    try:
        differences = check_seal(SEAL, bytes(data), "file")
    except DataError:
        return
    assert ("bytes", None) in brief(differences)
    row = DATA[:place].count(b"\n") + 1
    assert DATA[place : place + 1] == b"\n" or ("changed", row) in brief(differences)


def test_rows_of_a_sealed_set_prove_that_they_belong_to_it() -> None:
    proof = prove_inclusion(SEAL.row_sha256, 4)

    assert verify_inclusion(SEAL.row_sha256[4], proof, SEAL.merkle_root)
    assert not verify_inclusion(SEAL.row_sha256[3], proof, SEAL.merkle_root)


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(msgspec.structs.replace(SEAL, row_sha256=SEAL.row_sha256[::-1]), id="rows"),
        pytest.param(msgspec.structs.replace(SEAL, count=5), id="count"),
        pytest.param(msgspec.structs.replace(SEAL, merkle_root="00" * 32), id="root"),
    ],
)
def test_a_seal_that_contradicts_itself_is_refused(forged: SealFile) -> None:
    with pytest.raises(DataError, match="the seal of 'mine' contradicts itself"):
        check_seal(forged, DATA, "file")


def test_the_seal_of_a_pinned_set_holds_its_selected_rows_only() -> None:
    data = samples.lines(*({"task_id": number, "prompt": f"p{number}"} for number in range(9, 14)))

    seal = make_seal("mbpp", data, samples.entry("mbpp").layout, "file")

    assert seal.count == 3
    outside = data.replace(b"p9", b"q9")
    assert brief(check_seal(seal, outside, "file")) == [("bytes", None)]
