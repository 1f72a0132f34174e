from __future__ import annotations

import torch

from reference_mechanisms.kernels.step import twin


def test_a_row_attends_to_the_positions_between_its_bounds() -> None:
    made = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 4, 8, generator=made, dtype=torch.float64)
    place = torch.randn(4, 50, 8, generator=made, dtype=torch.float64)
    seen = twin.Seen(torch.tensor([0, 7, 49]), torch.tensor([1, 31, 50]))
    found = twin.attend(queries, place, seen).view(3, 4, 8)
    for row, (low, high) in enumerate(zip(*(bound.tolist() for bound in seen), strict=True)):
        for head in range(4):
            keys, values = place[head // 2, low:high], place[2 + head // 2, low:high]
            shares = (keys @ queries[row, head] / 8**0.5).softmax(0)
            torch.testing.assert_close(found[row, head], shares @ values)


def test_rows_are_written_at_their_positions_and_nowhere_else() -> None:
    place = torch.zeros(4, 10, 2)
    rows = torch.arange(1.0, 25.0).view(3, 4, 2)
    twin.write(place, torch.tensor([7, 0, 3]), rows)
    assert torch.equal(place[:, [7, 0, 3]], rows.transpose(0, 1))
    assert place.count_nonzero() == rows.numel()
