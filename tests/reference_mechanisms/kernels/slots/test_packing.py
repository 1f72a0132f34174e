from __future__ import annotations

import torch

from reference_mechanisms.kernels.slots.packing import pack
from reference_mechanisms.kernels.slots.settling import Turns, settle


def test_rows_lie_one_seat_behind_the_other() -> None:
    found = pack(
        torch.tensor([4, 1, 7, 2]),
        torch.tensor([10, 20, 0, 5]),
        torch.tensor([2, 3, 0, 1]),
        torch.arange(9),
        scratch=7,
        capacity=8,
    )
    assert found.first.tolist() == [0, 2, 5, 5]
    assert found.seats.tolist() == [0, 0, 1, 1, 1, 3, 4, 4, 4]
    assert found.row_slots.tolist() == [4, 4, 1, 1, 1, 2, 7, 7, 7]
    assert found.positions.tolist() == [10, 11, 20, 21, 22, 5, 6, 7, 0]
    assert found.inside.tolist() == [0, 1, 0, 1, 2, 0, 0, 0, 0]


def test_each_seat_goes_on_by_what_it_accepted() -> None:
    counts = torch.tensor([3, 1, 0, 2])
    packed = pack(torch.arange(4), torch.tensor([9, 5, 0, 30]), counts, torch.arange(8), 4, 64)
    turns = Turns(
        ids=torch.tensor([[1, 2, 3], [4, 0, 0], [7, 7, 7], [5, 6, 0]]),
        start=torch.tensor([9, 5, 0, 30]),
        drafted=torch.tensor([2, 0, 0, 1]),
        limit=torch.tensor([9, 1, 5, 4]),
    )
    # Rows: 1 2 3 | 4 | 5 6 | padding. What follows a draft that does not count is right by chance.
    choices = torch.tensor([2, 8, 9, 0, 6, 0, 33, 34])
    found = settle(turns, packed, choices, torch.tensor([1, 1, 0, 1, 1, 1, 0, 0]), drafts=2)
    assert found.accepted.tolist() == [1, 0, 0, 1]
    assert found.state.tolist() == [
        [8, 2, 3, 11, 2, 7],
        [0, 0, 0, 6, 0, 0],
        [7, 7, 7, 0, 2, 5],
        [0, 6, 0, 32, 2, 2],
    ]
    assert found.report[0].tolist() == [9, 2, 1, 2, 3, 2, 8, 9, 1, 1, 0]
