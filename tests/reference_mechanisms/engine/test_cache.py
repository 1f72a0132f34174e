from __future__ import annotations

import pytest
import torch

from reference_mechanisms.engine.cache import KVCache


def cache(capacity: int = 20, bucket: int = 8) -> KVCache:
    return KVCache(
        layers=2,
        slots=3,
        kv_heads=2,
        capacity=capacity,
        head_dim=4,
        bucket=bucket,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(
    ("capacity", "wanted"), [(1, 8), (8, 8), (9, 16), (20, 24)], ids=["one", "whole", "one more", "20"]
)
def test_the_capacity_is_whole_buckets(capacity: int, wanted: int) -> None:
    made = cache(capacity)
    assert made.capacity == wanted
    assert made.window(0, 0, wanted)[0].shape == (4, wanted, 4)
    assert made.visible(0, capacity, 1)[2] == wanted


def test_it_begins_as_zeros_because_masked_values_are_multiplied() -> None:
    assert all((layer == 0).all() for slot in range(3) for layer in cache().window(slot, 0, 24))


def test_only_commits_move_a_length() -> None:
    made = cache()
    made.window(1, 0, 5)
    assert [made.length(slot) for slot in range(3)] == [0, 0, 0]
    made.commit(1, 5)
    made.commit(1, 2)
    made.commit(1, 0)
    made.commit(2, 24)
    assert [made.length(slot) for slot in range(3)] == [0, 7, 24]
    made.clear(1)
    assert [made.length(slot) for slot in range(3)] == [0, 0, 24]


@pytest.mark.parametrize("kept", [-1, 5], ids=["negative", "more than fit"])
def test_a_commit_that_cannot_be_is_refused(kept: int) -> None:
    made = cache()
    made.commit(0, 20)
    with pytest.raises(ValueError, match=f"cannot keep {kept} rows: {20 + kept} positions in a cache of 24"):
        made.commit(0, kept)
    assert made.length(0) == 20


def test_what_is_written_is_seen_by_every_row_and_by_no_other_slot_or_layer() -> None:
    made = cache()
    window = made.window(1, 6, 3)
    written = torch.randn((4, 3, 4), generator=torch.Generator().manual_seed(0))
    window[1].copy_(written)
    keys, values, span = made.visible(1, 9, rows=5)
    assert (len(window), len(keys), len(values), span) == (2, 2, 2, 16)
    assert keys[1].shape == values[1].shape == (5, 2, 16, 4)
    for row in range(5):
        assert torch.equal(keys[1][row, :, 6:9], written[:2])  # keys before values
        assert torch.equal(values[1][row, :, 6:9], written[2:])
    for part in (keys, values):
        assert (part[1][:, :, :6] == 0).all()
        assert (part[1][:, :, 9:] == 0).all()
        assert (part[0] == 0).all()
    for slot in (0, 2):
        assert all((part == 0).all() for part in made.window(slot, 0, 24))


def test_reading_copies_nothing() -> None:
    made = cache()
    keys, values, _ = made.visible(2, 9, rows=4)
    made.window(2, 3, 1)[0].fill_(7.0)
    assert (keys[0][:, :, 3] == 7).all()
    assert (values[0][:, :, 3] == 7).all()
    assert keys[0].stride(0) == values[0].stride(0) == 0


@pytest.mark.parametrize(
    ("end", "span"), [(1, 8), (7, 8), (8, 8), (9, 16), (24, 24)], ids=["1", "7", "8", "9", "24"]
)
def test_the_span_is_whole_buckets_up_to_the_end(end: int, span: int) -> None:
    keys, _, found = cache().visible(0, end, rows=1)
    assert (found, keys[0].shape[2]) == (span, span)


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (24, 1), (20, 5), (0, 25)])
def test_a_window_outside_the_buffer_is_refused(start: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"positions {start}..{start + count} lie outside a cache of 24"):
        cache().window(0, start, count)


def test_the_whole_buffer_can_be_used() -> None:
    assert cache().window(0, 20, 4)[0].shape == (4, 4, 4)


def test_clearing_forgets_the_length_and_keeps_the_bytes_unseen() -> None:
    made = cache()
    made.window(0, 0, 2)[0].fill_(3.0)
    made.commit(0, 2)
    made.clear(0)
    assert made.length(0) == 0
    assert (made.window(0, 0, 2)[0] == 3).all()
