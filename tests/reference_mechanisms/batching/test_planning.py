from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reference_mechanisms.batching.adaptive_drafts.choosing import Habit, choose, uniform
from reference_mechanisms.batching.chunked_prefill.pieces import Piece, pieces
from reference_mechanisms.batching.cohorts.splitting import Cohorts, split
from reference_mechanisms.batching.costs import (
    FILE,
    CostError,
    Ground,
    Setup,
    StepCosts,
    VerifyCost,
    bucket_shapes,
    read_costs,
)
from reference_mechanisms.batching.expecting import Acceptance
from reference_mechanisms.batching.scheduler import Running, State, plan
from reference_mechanisms.batching.settings import BatchingError, BatchSettings, parse_batching
from reference_mechanisms.batching.tree_budgets.sharing import shared
from reference_mechanisms.verification.figures_file import FiguresError
from reference_mechanisms.verification.tree import DraftTree
from tests.reference_mechanisms.batching.tables import EXAMPLE_VLLM, staircase

SETUP = Setup(
    target="t",
    target_sha256="a",
    drafter="d",
    drafter_sha256="b",
    device="cpu",
    dtype="float32",
    weights_format="raw",
    context=64,
    graphs=False,
    repeats=5,
    measured="2026-12-02",
)


def running(count: int, drafts: int, alpha: float) -> tuple[Running, ...]:
    survival = tuple(alpha ** (j + 1) for j in range(drafts))
    return tuple(Running(slot, drafts, survival) for slot in range(count))


def test_a_step_costs_what_the_cheapest_bucket_that_holds_it_costs() -> None:
    assert EXAMPLE_VLLM.verify_ms(8, 8) == 5.47
    assert EXAMPLE_VLLM.verify_ms(5, 8) == 5.47
    assert EXAMPLE_VLLM.verify_ms(8, 9) == 5.76  # the bucket of 32 requests is cheaper
    assert EXAMPLE_VLLM.verify_ms(32, 257) == 15.7
    with pytest.raises(CostError, match="no bucket of `verify` holds 1025 rows of 64 requests"):
        EXAMPLE_VLLM.verify_ms(64, 1025)
    assert [one.rows for one in EXAMPLE_VLLM.edges(64)] == [64, 512, 1024]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"verify": ()}, "`verify` has no entry"),
        ({"verify": (VerifyCost(requests=2, rows=1, milliseconds=1.0),)}, "at least one row for each"),
        ({"verify": (VerifyCost(requests=1, rows=1, milliseconds=0.0),)}, "must be above 0"),
        ({"verify": (VerifyCost(requests=1, rows=1, milliseconds=float("nan")),)}, "must be above 0"),
        ({"verify": EXAMPLE_VLLM.verify * 2}, "twice"),
        ({"verify": EXAMPLE_VLLM.verify, "step_ms": -1.0}, "at least 0"),
    ],
)
def test_a_table_that_lies_is_refused(costs: dict[str, object], message: str) -> None:
    with pytest.raises(CostError, match=message):
        StepCosts(**costs)  # type: ignore[arg-type]


def test_a_table_is_read_where_it_was_measured_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    FILE.write(path, SETUP, staircase(4, 3))
    here = Ground("a", "cpu", "float32", "raw")
    assert read_costs(path, here) == (SETUP, staircase(4, 3))
    with pytest.raises(FiguresError, match="`device`"):
        read_costs(path, here._replace(device="other"))


def test_drafts_get_shorter_with_load_and_stop() -> None:
    costs = staircase(64, 7, row=0.5)
    chosen = [
        plan(State(running(count, 7, 0.6)), BatchSettings(slots=64, adaptive=True), costs, 7).drafts
        for count in (1, 4, 16, 64)
    ]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] >= 3
    assert chosen[-1] < chosen[0]
    off = plan(State(running(64, 7, 0.05)), BatchSettings(slots=64, adaptive=True), costs, 7)
    assert off.drafts == 0


def test_drafting_is_taken_up_again_only_if_it_pays_for_what_was_missed() -> None:
    expected = [[0.8, 0.6, 0.4]] * 4
    costs = staircase(4, 3)
    assert choose(expected, (0, 3), costs, uniform, before=0).drafts == 3
    dear = dataclasses.replace(costs, catch_up_ms=100.0)
    assert choose(expected, (0, 3), dear, uniform, before=0, habit=Habit(stay=4)).drafts == 0
    assert choose(expected, (0, 3), dear, uniform, before=0, habit=Habit(stay=4000)).drafts == 3
    assert choose(expected, (0, 3), dear, uniform, before=3).drafts == 3
    held = choose(expected, (2, 3), costs, uniform, before=2, habit=Habit(margin=0.9))
    assert held.drafts == 2


def test_a_budget_uses_a_bucket_in_full() -> None:
    costs = staircase(8, 7)
    found = plan(State(running(8, 7, 0.7)), BatchSettings(slots=8, budget=True), costs, 7)
    assert found.budget is not None
    assert (8 + found.budget) % 8 == 0


def test_pieces_share_the_rows_of_a_step_by_arrival() -> None:
    left = ((3, 4), (0, 9), (1, 2))
    assert pieces(left, 6, decoding=True) == (Piece(3, 4), Piece(0, 2))
    assert pieces(left, 6, decoding=False) == (Piece(3, 4),)
    assert pieces(left, None, decoding=True) == (Piece(3, 4), Piece(0, 9), Piece(1, 2))
    assert pieces((), 6, decoding=True) == ()


def test_requests_join_in_order_and_at_once() -> None:
    found = plan(State((), (), (3, 8, 2), (1, 2)), BatchSettings(slots=3), None, 4)
    assert found.joins == (1, 2)
    assert found.prefill == (Piece(1, 3),)


def test_cohorts_take_turns_and_nobody_changes_sides() -> None:
    assert split((0, 1, 2, 5), 0) == Cohorts((0, 2), (1, 5))
    assert split((0, 1, 2, 5), 1) == Cohorts((1, 5), (0, 2))
    assert split((0, 2), 1) == Cohorts((0, 2), ())


def test_cohorts_are_planned_only_where_overlap_was_measured_to_pay() -> None:
    state, settings = State(running(4, 3, 0.7)), BatchSettings(slots=4, cohorts=True)
    costs = staircase(4, 3)
    assert plan(state, settings, costs, 3).cohorts == Cohorts((0, 2), (1, 3))
    unmeasured = dataclasses.replace(costs, overlap=())
    assert plan(state, settings, unmeasured, 3).cohorts == Cohorts((0, 1, 2, 3), ())


def test_trees_share_nodes_by_what_their_paths_are_worth() -> None:
    sure = DraftTree((5, 6, 7), (-1, 0, 1), (-0.1, -0.1, -0.1))
    unsure = DraftTree((5, 6, 7), (-1, -1, 0), (-1.0, -2.0, -2.0))
    assert [len(tree) for tree in shared([sure, unsure], 4)] == [3, 1]
    assert [len(tree) for tree in shared([sure, unsure], 2)] == [2, 0]


def test_what_was_cut_short_does_not_look_rejected() -> None:
    own = Acceptance(decay=1.0, weight=1e-9)
    for _ in range(8):
        own.saw(verified=2, accepted=2)
    own.saw(verified=4, accepted=2)
    first, second, third, fourth = own.conditional(4)
    assert (first, second) == pytest.approx((1.0, 1.0))
    assert third == pytest.approx(0.0, abs=1e-6)
    assert fourth == 0.5
    found = own.survivals(4)
    assert list(found) == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"batch_slots": 0}, "`batch_slots` must be an integer in 1"),
        ({"batch_ragged": 1}, "`batch_ragged` must be true or false"),
        ({"batch_budget": True}, "`batch_budget` needs measured costs"),
        ({"batch_adaptive": True}, "`batch_adaptive` needs measured costs"),
        ({"step_costs": "nowhere.json"}, "`step_costs` must be the file"),
        ({"batch_cohorts": True, "batch_slots": 1}, "at least 2 `batch_slots`"),
        ({"batch_cohorts": True, "batch_ragged": False}, "does not go with `batch_ragged`"),
    ],
)
def test_bad_parameters_are_refused_with_the_reason(params: dict[str, object], message: str) -> None:
    with pytest.raises(BatchingError, match=message):
        parse_batching(params, tree=False, hosted=False)


def test_combinations_are_refused_with_both_names(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    FILE.write(path, SETUP, staircase(4, 3))
    given = {"step_costs": str(path), "batch_budget": True}
    found = parse_batching(given, tree=False, hosted=False)
    assert found is not None
    assert found.on == ("ragged", "budget", "chunked_prefill")
    with pytest.raises(BatchingError, match="`min_confidence`"):
        parse_batching(given, tree=False, hosted=True)
    with pytest.raises(BatchingError, match="give `batch_tree_budget`"):
        parse_batching(given, tree=True, hosted=False)
    with pytest.raises(BatchingError, match="give its number of nodes"):
        parse_batching({"step_costs": str(path), "batch_tree_budget": True}, tree=False, hosted=False)
    assert parse_batching({}, tree=False, hosted=False) is None


def test_bucket_shapes_hold_every_load_with_little_padding() -> None:
    shapes = bucket_shapes(8, 7)
    assert (8, 8) in shapes
    assert (8, 64) in shapes
    assert all(rows >= requests for requests, rows in shapes)
    for rows in range(8, 65):
        padded = min(edge for requests, edge in shapes if requests == 8 and edge >= rows)
        assert padded - rows <= max(8, rows // 3)
