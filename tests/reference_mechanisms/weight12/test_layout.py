from __future__ import annotations

import pytest

from reference_mechanisms.weight12.layout import (
    reason_of_size,
    reason_to_keep,
    rows_columns,
    stored_bytes,
)


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("BF16", (256, 256), None),
        ("BF16", (4, 64, 256), None),
        ("F16", (256, 256), "F16, not BF16"),
        ("F8_E4M3", (256, 256), "F8_E4M3, not BF16"),
        ("BF16", (1 << 20,), "fewer than two dimensions"),
        ("BF16", (), "fewer than two dimensions"),
        ("BF16", (1 << 12, 255), "rows shorter than 256"),
        ("BF16", (255, 256), "fewer than 65536 weights"),
        ("BF16", (0, 256), "fewer than 65536 weights"),
    ],
)
def test_what_is_packed_and_why_not(dtype: str, shape: tuple[int, ...], reason: str | None) -> None:
    assert reason_to_keep(dtype, shape) == reason


def test_leading_dimensions_are_rows() -> None:
    assert rows_columns((2, 3, 5)) == (6, 5)
    assert rows_columns((7,)) == (1, 7)
    assert rows_columns(()) == (1, 1)


def test_size_is_twelve_bits_an_index_a_table_and_the_raw_rows() -> None:
    weights = 4096 * 4096
    assert stored_bytes((4096, 4096), 10, 0) == weights * 12 // 8 + weights // 64 + 80
    assert stored_bytes((4096, 4096), 10, 3) - stored_bytes((4096, 4096), 10, 0) == 3 * (4 + 2 * 4096)


@pytest.mark.parametrize(("raw_rows", "kept"), [(0, False), (377, False), (378, True), (4096, True)])
def test_a_tensor_is_kept_above_85_percent_of_its_bf16_size(raw_rows: int, kept: bool) -> None:
    reason = reason_of_size((4096, 4096), 10, raw_rows)
    assert (reason is not None) == kept
    if reason is not None:
        assert f"above 13.6 ({raw_rows} raw rows)" in reason
