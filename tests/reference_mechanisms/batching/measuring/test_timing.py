from __future__ import annotations

import pytest

from reference_mechanisms.batching.costs import CostError
from reference_mechanisms.batching.measuring.timing import WARM_UPS, Job, Piece, table, time_in_turn

VERIFY, DRAFT = Piece("verify", (2, 8)), Piece("draft", (2, 3))


def test_pieces_are_timed_in_turn_and_warm_ups_do_not_count() -> None:
    now, order, told = 0, [], []

    def clock() -> int:
        return now

    def work(name: str) -> None:
        nonlocal now
        order.append(name)
        now += 10 * len(order)

    jobs = [Job(VERIFY, lambda: work("v")), Job(DRAFT, lambda: work("d"))]
    found = time_in_turn(jobs, 3, clock, lambda done, of: told.append((done, of)))
    assert WARM_UPS == 2
    assert "".join(order) == "dv" + "vd" + "dv" + "vd" + "dv"
    assert found == {VERIFY: [60, 70, 100], DRAFT: [50, 80, 90]}
    assert told == [(n, 5) for n in range(1, 6)]


def test_the_table_holds_medians_and_their_quartiles() -> None:
    times = {
        VERIFY: [4_000_000, 1_000_000, 2_000_000, 3_000_000, 90_000_000],
        Piece("verify", (1, 1)): [7_000_000],
        Piece("between", (2, 6)): [2_500_000] * 3,
        DRAFT: [500_000, 700_000, 600_000],
        Piece("overlap", (1, 4, 3)): [900_000],
        Piece("prefill", (64,)): [1_100_000],
        Piece("catch up", ()): [300_000],
        Piece("host", ()): [200_000, 100_000, 400_000],
    }
    found = table(times)
    one, two = found.verify
    assert (one.requests, one.rows, one.milliseconds, one.quartiles_ms) == (1, 1, 7.0, (7.0, 7.0))
    assert (two.requests, two.rows, two.milliseconds, two.quartiles_ms) == (2, 8, 3.0, (2.0, 4.0))
    assert [(one.requests, one.rows) for one in found.between] == [(2, 6)]
    assert found.draft_ms(2, 3) == 0.6
    assert found.overlap_ms(1, 4, 3) == 0.9
    assert found.prefill_ms(64) == 1.1
    assert (found.catch_up_ms, found.step_ms) == (0.3, 0.2)
    with pytest.raises(CostError, match="`verify` has no entry"):
        table({DRAFT: [1]})
