from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_mechanisms.weight12.digests import BLANK, SEAL, check_seal, fold64, sealed, sha256
from tests.reference_mechanisms.weight12 import samples

WORD = (1 << 64) - 1


def mix(value: int) -> int:
    """splitmix64 in plain whole numbers."""
    value = (value + 1) * 0x9E3779B97F4A7C15 & WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31


@pytest.mark.parametrize("size", [0, 1, 1000, 65536, 65537, 200_000])
def test_fold64_is_the_documented_sum(size: int) -> None:
    bits = samples.random_bits((size,), 4)
    total = sum(
        pattern * (mix(at % 65536) | 1) * (mix(65536 + at // 65536) | 1)
        for at, pattern in enumerate(bits.tolist())
    )
    assert fold64(bits) == f"{total & WORD:016x}"


@given(st.integers(0, 99_999), st.integers(1, 65535))
@settings(max_examples=50, deadline=None)
def test_one_changed_weight_always_changes_fold64(at: int, mask: int) -> None:
    bits = samples.normal((100_000,))
    other = bits.copy()
    other[at] ^= mask
    assert fold64(bits) != fold64(other)


def test_sha256_is_over_the_bytes_in_row_order() -> None:
    one, two = np.arange(6, dtype=np.uint16).reshape(2, 3), np.empty((0, 4), np.uint8)
    expected = hashlib.sha256(one.tobytes()).hexdigest()
    assert sha256([one, two]) == sha256([np.asfortranarray(one)]) == expected


def test_a_sealed_text_is_aligned_json_and_gives_its_seal() -> None:
    text = sealed({SEAL: BLANK, "a": 'é "weight12.seal"'}, 64, 8)
    assert (len(text) + 8) % 64 == 0
    assert check_seal(text) in text.decode()


def test_no_byte_of_a_sealed_text_can_change() -> None:
    text = sealed({"before": 1, SEAL: BLANK, "after": {"x": "y"}}, 64)
    for at in range(len(text)):
        for mask in (1, 2, 0x20, 0x80, 0xFF):
            changed = text[:at] + bytes([text[at] ^ mask]) + text[at + 1 :]
            with pytest.raises(ValueError, match="seal"):
                check_seal(changed)


def test_a_text_with_two_seals_is_not_trusted() -> None:
    text = sealed({SEAL: BLANK, "a": {SEAL: "f" * 64}})
    with pytest.raises(ValueError, match="it has no"):
        check_seal(text)


@pytest.mark.parametrize("document", [{}, {SEAL: "0"}, {SEAL: BLANK, "a": {SEAL: BLANK}}], ids=str)
def test_a_document_needs_one_blank_seal(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="one blank member"):
        sealed(document)
