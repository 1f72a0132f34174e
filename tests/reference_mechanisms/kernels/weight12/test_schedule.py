from __future__ import annotations

import dataclasses
import itertools

import pytest

from reference_mechanisms.kernels.weight12.models import MODELS
from reference_mechanisms.kernels.weight12.schedule import (
    BLACKWELL_RTX,
    CHOICE,
    CHOICES_BY_NAME,
    CLUSTERS,
    HOPPER,
    LARGE_ROOM,
    MIN_RING,
    NOMINAL_CTAS,
    PANEL,
    PLAIN,
    SLOT_BYTES,
    STEP_PIECES,
    WARPS,
    X_TILES,
    Split,
    Variant,
    Way,
    fit,
    settled,
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


@pytest.mark.parametrize("name", CHOICES_BY_NAME)
@pytest.mark.parametrize("room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_every_way_fits_and_changes_no_cut_with_the_tokens(
    shape: tuple[int, int], room: int, name: str
) -> None:
    found, choice = settled(split(*shape), *shape, CHOICES_BY_NAME[name], wgmma=room == HOPPER)
    for tokens in (1, 9, 32, 64):
        for raw in (False, True):
            kernel = variant(found, tokens, raw=raw, room=room, choice=choice)
            assert (kernel.cluster, kernel.warps_k) == (found.cluster, found.warps_k)
            assert kernel.shared_bytes <= room
            assert kernel.pieces >= 16 // kernel.warps


@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_cuts_are_others_only_where_wgmma_is_used(shape: tuple[int, int]) -> None:
    own = split(*shape)
    for name, choice in CHOICES_BY_NAME.items():
        for has in (False, True):
            found, ways = settled(own, *shape, choice, wgmma=has)
            uses = any(way.wgmma for way in ways.values())
            assert found == (split(*shape, PANEL) if uses else own)
            assert not uses or has
            if "wide" not in name:
                assert found.cluster <= own.cluster
            elif has:
                assert uses


def test_what_has_no_wgmma_keeps_the_rest_of_its_way() -> None:
    own = split(4096, 4096)
    found, ways = settled(own, 4096, 4096, CHOICES_BY_NAME["wgmma-above-8"], wgmma=False)
    assert found == own
    assert ways == {1: Way(bulk=True), 2: PLAIN, 4: PLAIN, 8: PLAIN}


def test_the_present_choice_gives_a_token_its_bits_at_any_number_of_others() -> None:
    """Until a device has shown that wgmma sums as mma.sync does (test_wgmma_cuda.py)."""
    assert len({way.wgmma for way in CHOICE.values()}) == 1


def test_a_pass_of_fewer_rows_than_four_warps_take_is_refused() -> None:
    found = split(4096, 4096)
    assert found.group_rows < PANEL
    with pytest.raises(ValueError, match="a pass of 32 rows; with wgmma it takes 64"):
        variant(found, 1, raw=False, choice=CHOICES_BY_NAME["wgmma"])


@pytest.mark.parametrize("name", ["plain", "wgmma"])
@pytest.mark.parametrize("model", MODELS)
def test_on_hopper_32_tokens_go_in_one_launch(model: str, name: str) -> None:
    for shape in MODELS[model].shapes:
        found, choice = settled(split(*shape), *shape, CHOICES_BY_NAME[name])
        assert variant(found, 32, raw=False, choice=choice).blocks == 4


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
