from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.errors import UsageError
from harness.report.tree_summary import beta_of, tree_summary
from harness.results import ArmResult, Report, SetSpeedup
from tests.harness.report import build, pieces

SETS = ("math", "code", "own")


def arm(
    name: str, speeds: tuple[float, float, float], lengths: tuple[float, ...], **params: Any
) -> ArmResult:
    base = pieces.on_set("stock", "any")
    return msgspec.structs.replace(
        pieces.arm("stock"),
        name=name,
        kind="ar" if params.get("drafter") == "none" else "candidate",
        params=params,
        tokens_per_second=100.0 * speeds[0],
        speedup_by_set=tuple(
            SetSpeedup(set_name=drawn, prompts=4, speedup=pieces.interval(speed, speed - 0.1, speed + 0.1))
            for drawn, speed in zip(SETS, speeds, strict=True)
        ),
        acceptance_by_set=tuple(
            msgspec.structs.replace(base, set_name=drawn, length=length)
            for drawn, length in zip(SETS, lengths, strict=True)
        ),
    )


AR = arm("ar", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), drafter="none")
CHAIN = arm("chain", (2.0, 1.0, 9.0), (3.0, 2.0, 9.0), drafter="dflash", drafts=7)
OTHER = arm("eagle", (3.0, 3.0, 3.0), (4.0, 4.0, 4.0), drafter="eagle3")
SMALL = arm("tree-7", (2.0, 1.1, 0.1), (3.2, 2.2, 9.0), drafter="dflash", tree=7)
BEST = arm("tree-31", (2.4, 1.4, 0.1), (4.0, 3.0, 9.0), drafter="dflash", tree=31, tree_figures="f.json")
SLOW = arm("eagle-31", (3.0, 2.4, 3.0), (5.0, 5.0, 4.0), drafter="eagle3", tree=31)
HOLD = arm("hold", (1.0, 0.5, 1.0), (3.0, 2.0, 4.0), drafter="dflash", two_level="hold")


def report(*arms: ArmResult, **changes: Any) -> Report:
    made = build.report(**changes)
    sets = tuple(
        msgspec.structs.replace(made.sets[0], name=name, source="embedded" if name == "own" else "folder")
        for name in SETS
    )
    return msgspec.structs.replace(made, sets=sets, arms=arms)


def test_the_tree_that_gains_most_stands_beside_its_own_chain() -> None:
    levels = report(AR, CHAIN, HOLD)
    found = tree_summary(report(AR, CHAIN, OTHER, SMALL, BEST, SLOW), None, [], 0.7, levels)
    dense = found["dense"]
    assert dense["drafter"] == "dflash"
    assert dense["chain"] == {"arm": "chain", "tau": 2.5, "tokens_per_s": 200.0}
    assert dense["tree"]["budget"] == 31
    assert dense["tree"]["calibrated"] is True
    assert (dense["tree"]["tau"], dense["tree"]["tokens_per_s"]) == (3.5, 240.0)
    assert dense["gain"] == pytest.approx((1.2 + 1.4) / 2)  # of the public sets
    assert [(one["arm"], round(one["gain"], 3)) for one in dense["trees"]] == [
        ("tree-7", 1.05),
        ("tree-31", 1.3),
        ("eagle-31", 0.9),
    ]
    assert found["hybrid"] is None
    assert found["two_level"] == {"beta": 0.7, "gain": 0.5}  # of the run with two levels
    assert len(found["plan_hashes"]) == 2


def test_two_levels_have_a_run_of_their_own_or_no_gain() -> None:
    trees = report(AR, CHAIN, BEST, HOLD)
    assert tree_summary(trees, None, [], 0.7)["two_level"] == {"beta": 0.7, "gain": None}
    with pytest.raises(UsageError, match="no arm has `two_level` beside an arm with the chain"):
        tree_summary(trees, None, [], 0.7, report(AR, CHAIN, BEST))
    violated = report(AR, CHAIN, HOLD, losslessness=pieces.losslessness(stock_verdict="violated"))
    assert tree_summary(trees, None, [], 0.7, violated)["stock_verdict"] == "violated"


def test_the_verdicts_are_the_worst_of_all_runs() -> None:
    dense, hybrid = report(AR, CHAIN, BEST), report(AR, OTHER, SLOW)
    exact = report(AR, CHAIN, BEST, losslessness=pieces.losslessness(self_exact=False))
    near = report(
        AR, CHAIN, BEST, losslessness=pieces.losslessness(stock_verdict="near-tie", self_exact=None)
    )
    assert tree_summary(dense, None, [], None)["self_exact"] is True
    assert tree_summary(dense, None, [exact], None)["self_exact"] is False
    found = tree_summary(near, hybrid, [], None)
    assert (found["stock_verdict"], found["self_exact"]) == ("near-tie", True)
    assert found["hybrid"]["drafter"] == "eagle3"
    assert len(found["plan_hashes"]) == 2
    unjudged = report(AR, CHAIN, BEST, losslessness=None)
    assert tree_summary(unjudged, None, [], None)["stock_verdict"] == "not-judged"
    assert tree_summary(unjudged, None, [], None)["self_exact"] is None


def test_a_run_without_speeds_tells_no_gain() -> None:
    silent = msgspec.structs.replace(BEST, speedup_by_set=None, tokens_per_second=None)
    found = tree_summary(report(AR, CHAIN, silent), None, [], None)["dense"]
    assert (found["gain"], found["tree"]["tau"]) == (None, 3.5)


def test_a_report_without_a_pair_is_refused() -> None:
    with pytest.raises(UsageError, match="no arm has a `tree` beside an arm with the chain"):
        tree_summary(report(AR, CHAIN, SLOW), None, [], None)


def test_agreement_is_read_from_the_file_of_figures() -> None:
    assert beta_of({"measured": {"beta": 0.5}}, "f.json") == 0.5
    with pytest.raises(UsageError, match=r"f\.json holds no `beta`"):
        beta_of({"figures": {}}, "f.json")
