"""Pairing of an arm with the baseline."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import DataError
from harness.stats.grid import Grid, lay_out
from harness.stats.pairs import batch_cost, pair_batches, pair_requests
from tests.harness.stats.build import failed, response


def test_requests_are_paired_by_launch_block_and_prompt_whatever_their_order() -> None:
    baseline = [response("a", seconds=1.0), response("b", seconds=2.0), response("a", seconds=3.0, block=1)]
    arm = [
        response("a", "s", seconds=30.0, block=1),
        response("b", "s", seconds=20.0),
        response("a", "s", seconds=10.0),
    ]
    pairs, lost = pair_requests(baseline, arm)
    assert [(p.block, p.prompts, p.arm.total_ns // p.baseline.total_ns) for p in pairs] == [
        (0, ("a",), 10),
        (0, ("b",), 10),
        (1, ("a",), 10),
    ]
    assert lost == 0


@pytest.mark.parametrize("side", ["baseline", "arm"])
def test_a_pair_with_a_failed_side_is_left_out_on_both_sides_and_counted(side: str) -> None:
    good = {"baseline": response("a", "ar"), "arm": response("a", "s")}
    bad = {"baseline": failed("a", "ar"), "arm": failed("a", "s")}
    chosen = good | {side: bad[side]}
    kept = [response("b", "ar"), response("b", "s")]
    pairs, lost = pair_requests([chosen["baseline"], kept[0]], [chosen["arm"], kept[1]])
    assert [p.prompts for p in pairs] == [("b",)]
    assert lost == 1


def test_a_missing_side_counts_as_lost() -> None:
    pairs, lost = pair_requests([response("a"), response("b")], [response("b", "s")])
    assert (len(pairs), lost) == (1, 1)


def test_two_responses_to_one_prompt_in_one_block_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="arm s holds two responses to a in launch 0 block 1"):
        pair_requests([], [response("a", "s", block=1), response("a", "s", block=1, order=4)])


def test_decode_time_and_tokens_leave_out_the_first_token() -> None:
    pairs, _ = pair_requests(
        [response("a", seconds=5.0, first=2.0, tokens=7)],
        [response("a", "s", seconds=4.0, first=3.0, tokens=7)],
    )
    assert pairs[0].baseline == (5_000_000_000, 3_000_000_000, 7, 6)
    assert pairs[0].arm == (4_000_000_000, 1_000_000_000, 7, 6)


def test_a_batch_counts_its_wall_time_once_and_the_tokens_of_all_members() -> None:
    members = [
        response("a", seconds=4.0, first=1.0, tokens=5),
        response("b", seconds=3.0, first=2.0, tokens=3),
    ]
    assert batch_cost(members) == (4_000_000_000, 3_000_000_000, 8, 6)


def test_batches_are_paired_by_the_prompts_decoded_together() -> None:
    baseline = [
        response("a", order=0),
        response("b", order=0),
        response("c", order=2),
        response("d", order=2),
    ]
    arm = [
        response("d", "s", order=1),
        response("c", "s", order=1, seconds=2.0),
        response("a", "s", order=3),
        response("b", "s", order=3),
    ]
    pairs, lost = pair_batches(baseline, arm)
    assert [(p.prompts, p.arm.total_ns // p.baseline.total_ns) for p in pairs] == [
        (("a", "b"), 1),
        (("c", "d"), 2),
    ]
    assert lost == 0


def test_one_failed_member_loses_its_whole_batch() -> None:
    pairs, lost = pair_batches(
        [response("a", order=0), response("b", order=0)],
        [response("a", "s", order=1), failed("b", "s", order=1)],
    )
    assert (pairs, lost) == ((), 1)


def test_lost_pairs_leave_zero_cells_on_both_sides() -> None:
    baseline = [response("a"), response("b"), response("a", block=1), failed("b", block=1)]
    arm = [response("a", "s"), response("b", "s"), response("a", "s", block=1), response("b", "s", block=1)]
    grid = lay_out(pair_requests(baseline, arm).pairs)
    assert grid is not None
    assert grid.present.tolist() == [[True, True], [True, False]]
    for cells in (grid.baseline_ns, grid.arm_ns, grid.baseline_tokens, grid.arm_tokens):
        assert cells[1, 1] == 0.0


def test_no_pair_gives_no_grid() -> None:
    assert lay_out(()) is None


def test_launches_are_numbered_without_gaps_and_blocks_counted_per_launch() -> None:
    spots = [(1, 0), (1, 1), (4, 0)]
    baseline = [response("a", launch=launch, block=block) for launch, block in spots]
    arm = [response("a", "s", launch=launch, block=block) for launch, block in spots]
    grid = lay_out(pair_requests(baseline, arm).pairs)
    assert grid is not None
    assert grid.launch_of.tolist() == [0, 0, 1]
    assert (grid.launches, grid.blocks) == (2, 2)


def test_batches_that_come_back_in_every_block_keep_their_column() -> None:
    grid = _batched({0: (("a", "b"), ("c", "d")), 1: (("c", "d"), ("a", "b"))})
    assert grid.units == ("a + b", "c + d")
    assert grid.prompts == 4


def test_batches_drawn_anew_are_ranked_by_their_influence_in_each_block() -> None:
    grid = _batched({0: (("a", "b"), ("c", "d")), 1: (("a", "c"), ("b", "d"))})
    assert grid.units == ("batch rank 0", "batch rank 1")
    ratios = grid.baseline_ns / grid.arm_ns
    assert np.all(ratios[:, 0] < ratios[:, 1])
    assert grid.prompts == 4


def _batched(blocks: dict[int, tuple[tuple[str, ...], ...]]) -> Grid:
    """Batches whose arm is the slower, the later in the alphabet their prompts are."""
    baseline, arm = [], []
    for block, groups in blocks.items():
        for index, group in enumerate(groups):
            order = 10 * block + 2 * index
            gain = sum(ord(name) - ord("a") for name in group)
            baseline += [response(name, seconds=10.0, block=block, order=order) for name in group]
            arm += [response(name, "s", seconds=10.0 + gain, block=block, order=order + 1) for name in group]
    grid = lay_out(pair_batches(baseline, arm).pairs)
    assert grid is not None
    return grid
