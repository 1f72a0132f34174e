from __future__ import annotations

import dataclasses
import itertools

import pytest

from reference_mechanisms.kernels.weight12.models import MODELS
from reference_mechanisms.kernels.weight12.schedule import (
    BLACKWELL_RTX,
    BLOCKS,
    CLUSTERS,
    HOPPER,
    LARGE_ROOM,
    MIN_RING,
    NOMINAL_CTAS,
    SLOT_BYTES,
    STEP_PIECES,
    WARPS,
    WAYS_BY_NAME,
    X_TILES,
    Split,
    Variant,
    fit,
    shared_bytes,
    split,
    variant,
)

SHAPES = sorted({shape for model in MODELS.values() for shape in model.shapes})
ODD = [(1, 1), (1, 256), (33, 100), (65, 300), (2051, 4160), (96, 17408)]
ROOM = {"sm_90": HOPPER, "sm_120": BLACKWELL_RTX}


def cuts(found: Split) -> list[int]:
    """First tiles of the parts of a row, as the kernel reckons them, and the end."""
    parts = found.cluster * found.warps_k
    return [found.tiles * part // parts for part in range(parts + 1)]


@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_a_split_covers_every_row_and_column_once(shape: tuple[int, int]) -> None:
    found = split(*shape)
    assert found.rows >= shape[0]
    assert found.rows - shape[0] < found.group_rows
    assert found.rows % found.group_rows == 0
    assert found.cluster in CLUSTERS
    bounds = cuts(found)
    assert bounds[0] == 0
    assert bounds[-1] == -(-shape[1] // 64)
    assert all(one <= two for one, two in itertools.pairwise(bounds))


@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_no_cta_holds_more_columns_of_x_than_it_has_room_for(shape: tuple[int, int]) -> None:
    found = split(*shape)
    bounds = cuts(found)[:: found.warps_k]
    assert max(two - one for one, two in itertools.pairwise(bounds)) <= found.x_tiles
    assert found.x_tiles <= X_TILES or found.cluster == CLUSTERS[-1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_seven_eighths_of_the_ctas_have_work_to_the_end(shape: tuple[int, int]) -> None:
    found = split(*shape)
    clusters = NOMINAL_CTAS // found.cluster
    passes = -(-found.groups // clusters)
    assert found.groups / (passes * clusters) > 7 / 8


@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_tokens_raw_and_device_change_no_cut_of_a_sum(shape: tuple[int, int], room: int) -> None:
    found = split(*shape)
    kernels = [variant(found, m, raw=raw, room=room) for m in range(1, 65) for raw in (False, True)]
    assert {(kernel.cluster, kernel.warps_k) for kernel in kernels} == {(found.cluster, found.warps_k)}


@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("raw", [False, True], ids=["packed", "twin"])
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_every_kernel_fits_its_device_with_rings_that_keep_memory_busy(
    shape: tuple[int, int], raw: bool, room: int
) -> None:
    for tokens in (1, 8, 9, 16, 17, 32, 33, 64):
        kernel = variant(split(*shape), tokens, raw=raw, room=room)
        assert kernel.shared_bytes <= room
        assert kernel.warps * kernel.pieces * SLOT_BYTES[raw] >= MIN_RING[room >= LARGE_ROOM]
        assert kernel.pieces * kernel.warps >= STEP_PIECES


@pytest.mark.parametrize("name", WAYS_BY_NAME)
@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_every_way_fits_and_changes_no_cut(shape: tuple[int, int], room: int, name: str) -> None:
    found = split(*shape)
    for tokens in (1, 9, 32, 64):
        kernel = variant(
            found, tokens, raw=False, room=room, choice=dict.fromkeys(BLOCKS, WAYS_BY_NAME[name])
        )
        assert (kernel.cluster, kernel.warps_k) == (found.cluster, found.warps_k)
        assert kernel.shared_bytes <= room
        assert kernel.pieces >= 16 // kernel.warps


@pytest.mark.parametrize("model", MODELS)
def test_on_hopper_32_tokens_go_in_one_launch(model: str) -> None:
    for shape in MODELS[model].shapes:
        assert variant(split(*shape), 32, raw=False).blocks == 4


def test_more_tokens_than_fit_at_once_are_taken_in_turns() -> None:
    found = split(4096, 12288)
    assert variant(found, 64, raw=False, room=HOPPER).blocks == 4
    assert variant(found, 64, raw=False, room=BLACKWELL_RTX).blocks == 2


def test_columns_that_fit_nowhere_are_refused() -> None:
    with pytest.raises(ValueError, match="columns are too many for 101376 bytes"):
        variant(split(64, 200_000), 1, raw=False, room=BLACKWELL_RTX)


def test_shared_memory_is_counted_as_the_kernel_lays_it_out() -> None:
    found = Split(rows=64, tiles=8, cluster=2, warps_k=8)
    kernel = fit(found, 1, 16, raw=False, room=HOPPER)
    assert kernel == Variant(
        blocks=1,
        raw=False,
        cluster=2,
        warps_k=8,
        warps=16,
        pieces=4,
        batch=4,
        shared_bytes=16 * 4 * 1664 + 8192 + 2 * 4 * 1024 + 2048 + 16 + 8 * (4 * 128 + 16),
    )


def test_a_layout_whose_rings_would_be_too_small_does_not_fit() -> None:
    found = Split(rows=64, tiles=64, cluster=1, warps_k=8)
    assert shared_bytes(found, 4, 1, 0, raw=False) > HOPPER
    assert fit(found, 4, 16, raw=False, room=HOPPER) is None
    assert fit(dataclasses.replace(found, tiles=16), 4, 16, raw=False, room=HOPPER) is not None


def test_a_warp_takes_16_rows_or_32() -> None:
    assert set(WARPS) == {1, 2, 4, 8}
    assert {warps for choices in WARPS.values() for warps in choices} == {8, 16}
