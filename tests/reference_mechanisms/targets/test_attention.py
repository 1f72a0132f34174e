from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.engine.cache import KVCache
from reference_mechanisms.engine.rows import Segment
from reference_mechanisms.targets.attention import ChainAttention
from tests.reference_mechanisms.targets.models import CPU, fill_with_garbage

BUCKET = 64
SLOTS, LAYERS = 8, 2
TYPES = [torch.float32, torch.bfloat16, torch.float64]
SHAPES = {
    "9 heads of 64 on 3": (9, 3, 64),
    "4 heads of 16 on 4": (4, 4, 16),
    "5 heads of 32 on 1": (5, 1, 32),
}
# Rows 56..79: over the end of a bucket in the middle of a segment.
START, ROWS = 56, 24


class Case:
    """Random queries, keys and values of one sequence, the same in every slot of a dirty cache."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 1) -> None:
        self.heads, self.kv_heads, head_dim = shape
        self.dtype = dtype
        self.cache = KVCache(
            layers=LAYERS,
            slots=SLOTS,
            kv_heads=self.kv_heads,
            capacity=2 * BUCKET,
            head_dim=head_dim,
            bucket=BUCKET,
            dtype=dtype,
            device=CPU,
        )
        fill_with_garbage(self.cache, seed)
        made = torch.Generator().manual_seed(0)
        shaped = (START + ROWS, self.heads + 2 * self.kv_heads, head_dim)
        self.qkv = torch.randn(shaped, generator=made).to(dtype)
        for slot in range(SLOTS):
            self.attend(Segment(slot, 0, START))

    def attend(self, *segments: Segment, layer: int = 1) -> Tensor:
        made = ChainAttention(segments, self.cache, self.heads, self.dtype, CPU)
        return made(layer, torch.cat([self.qkv[start : start + rows] for _, start, rows in segments]))

    def one_by_one(self) -> Tensor:
        return torch.cat([self.attend(Segment(0, START + n, 1)) for n in range(ROWS)])


def cases(shapes: Sequence[tuple[int, int, int]] = tuple(SHAPES.values())) -> pytest.MarkDecorator:
    made = list(itertools.product(shapes, TYPES))
    return pytest.mark.parametrize(("shape", "dtype"), made, ids=[f"{s}, {t}" for s, t in made])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_row_is_the_softmax_average_of_the_values_up_to_itself(shape: tuple[int, int, int]) -> None:
    case = Case(shape, torch.float64)
    found = case.attend(Segment(0, START, ROWS))
    group = case.heads // case.kv_heads
    queries, keys, values = torch.split(case.qkv, [case.heads, case.kv_heads, case.kv_heads], dim=1)
    for row, head in itertools.product(range(ROWS), range(case.heads)):
        seen = START + row + 1
        scores = keys[:seen, head // group] @ queries[START + row, head] / shape[2] ** 0.5
        wanted = scores.softmax(0) @ values[:seen, head // group]
        mine = found[row, head * shape[2] : (head + 1) * shape[2]]
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-13)


@cases()
def test_a_row_is_bitwise_the_same_with_any_rows_behind_it(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: int
) -> None:
    case = Case(shape, dtype)
    alone = case.one_by_one()
    assert alone.isfinite().all()
    for rows in (2, 3, 5, 8, 9, 16, ROWS):
        assert torch.equal(case.attend(Segment(0, START, rows)), alone[:rows]), f"{rows} rows"


@cases()
def test_a_row_is_bitwise_the_same_in_a_batch_of_requests(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: int
) -> None:
    case = Case(shape, dtype)
    alone = case.one_by_one()
    # Slot n continues at START + n with another number of rows each, the last slot first.
    segments = [Segment(slot, START + slot, 3 + slot) for slot in reversed(range(SLOTS))]
    for slot in range(SLOTS):  # what lies between
        case.attend(Segment(slot, START, slot + 1))
    wanted = torch.cat([alone[slot : slot + rows] for slot, _, rows in segments])
    assert torch.equal(case.attend(*segments), wanted)


@cases()
def test_garbage_behind_the_length_changes_nothing(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    one, other = Case(shape, dtype, seed=1), Case(shape, dtype, seed=2)
    assert torch.equal(one.attend(Segment(0, START, 5)), other.attend(Segment(0, START, 5)))
    fill_with_garbage(other.cache, seed=3)
    assert not torch.equal(one.attend(Segment(0, START, 5)), other.attend(Segment(0, START, 5)))


def test_rejected_rows_are_written_over() -> None:
    case = Case((9, 3, 64), torch.float32)
    wanted = case.attend(Segment(0, START, 4))
    drafted = case.qkv.clone()
    drafted[START + 1 :].neg_()
    case.qkv, right = drafted, case.qkv
    case.attend(Segment(0, START, 8))
    case.qkv = right
    assert torch.equal(case.attend(Segment(0, START, 4)), wanted)


def test_keys_and_values_go_where_the_segment_says_and_nowhere_else() -> None:
    case = Case((4, 2, 16), torch.float32)
    before = [[layer.clone() for layer in case.cache.window(slot, 0, 128)] for slot in range(SLOTS)]
    case.attend(Segment(3, START, ROWS), layer=0)
    for slot, layer in itertools.product(range(SLOTS), range(LAYERS)):
        now = case.cache.window(slot, 0, 128)[layer]
        changed = (now != before[slot][layer]).any(-1).any(0).nonzero().flatten().tolist()
        assert changed == (list(range(START, START + ROWS)) if (slot, layer) == (3, 0) else [])
    written = case.cache.window(3, START, ROWS)[0]
    assert torch.equal(written, case.qkv[START:, 4:].transpose(0, 1))


@pytest.mark.parametrize(
    ("start", "rows", "parts"),
    [
        (0, 1, [1]),
        (0, BUCKET, [BUCKET]),
        (BUCKET - 1, 1, [1]),
        (BUCKET - 1, 2, [1, 1]),
        (BUCKET, 1, [1]),
        (10, 2 * BUCKET - 10, [BUCKET - 10, BUCKET]),
    ],
)
def test_a_row_reads_up_to_the_end_of_its_own_bucket(start: int, rows: int, parts: list[int]) -> None:
    case = Case((4, 2, 16), torch.float32)
    made = ChainAttention([Segment(0, start, rows)], case.cache, 4, torch.float32, CPU)
    assert [part.rows for part in made._parts] == parts
    position = start
    for part in made._parts:
        assert part.keys[0].shape[2] == (position // BUCKET + 1) * BUCKET
        assert (part.mask[:, 0, 0] == 0).sum(-1).tolist() == list(
            range(position + 1, position + 1 + part.rows)
        )
        position += part.rows
