from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.oracle import stored
from harness.plan import load_job
from harness.report.real_figures import real_figures
from harness.results import ArmResult, Report
from tests.harness.report import build, pieces


def arms(**changes: Any) -> tuple[ArmResult, ...]:
    speeds = {"ar": 100.0, "stock": 200.5, "candidate": 301.25, "own-ar": 150.0}
    made = []
    for name, speed in speeds.items():
        kind = "candidate" if name == "own-ar" else name
        params: dict[str, Any] = {"drafter": "none" if name == "own-ar" else "dflash"}
        one = msgspec.structs.replace(
            pieces.arm("stock"), name=name, kind=kind, params=params, tokens_per_second=speed
        )
        made.append(msgspec.structs.replace(one, **changes.get(name.replace("-", "_"), {})))
    return tuple(made)


def report(**changes: Any) -> Report:
    return msgspec.structs.replace(build.report(), **{"arms": arms(), **changes})


def test_each_role_has_the_speed_of_its_arm() -> None:
    found = real_figures(report())
    assert found.tokens_per_second == {"ar": 100.0, "stock": 200.5, "candidate": 301.25, "own_ar": 150.0}
    assert found.stands_on["stock_verdict"] == "exact"
    assert found.stands_on["requests_in_a_batch"] == report().job.plan.measure.batch


def test_the_fastest_setting_of_stock_counts() -> None:
    stock = next(one for one in arms() if one.kind == "stock")
    other = msgspec.structs.replace(stock, name="stock-k3", kind="candidate", tokens_per_second=250.0)
    found = real_figures(report(arms=(*arms(), other)))
    assert (found.tokens_per_second["stock"], found.stands_on["stock_arm"]) == (250.0, "stock-k3")
    slower = msgspec.structs.replace(other, tokens_per_second=150.0)
    assert real_figures(report(arms=(*arms(), slower))).stands_on["stock_arm"] == "stock"


def test_the_fastest_lossless_candidate_counts() -> None:
    one = next(one for one in arms() if one.name == "candidate")
    assert one.losslessness is not None
    assert real_figures(report()).stands_on["candidate_arm"] == "candidate"
    faster = msgspec.structs.replace(one, name="driven", tokens_per_second=400.0)
    found = real_figures(report(arms=(*arms(), faster)))
    assert (found.tokens_per_second["candidate"], found.stands_on["candidate_arm"]) == (400.0, "driven")
    slower = msgspec.structs.replace(faster, tokens_per_second=300.0)
    assert real_figures(report(arms=(*arms(), slower))).stands_on["candidate_arm"] == "candidate"
    failed = msgspec.structs.replace(faster, tokens_per_second=None)
    assert real_figures(report(arms=(*arms(), failed))).stands_on["candidate_arm"] == "candidate"


@pytest.mark.parametrize("verdict", ["violated", "not-judged", None])
def test_a_candidate_that_is_not_lossless_counts_only_where_none_is(verdict: str | None) -> None:
    one = next(one for one in arms() if one.name == "candidate")
    judged = one.losslessness
    assert judged is not None
    if verdict is not None:
        judged = msgspec.structs.replace(judged, stock_verdict=verdict)
    wrong = msgspec.structs.replace(
        one, name="driven", tokens_per_second=400.0, losslessness=None if verdict is None else judged
    )
    found = real_figures(report(arms=(*arms(), wrong)))
    assert (found.tokens_per_second["candidate"], found.stands_on["candidate_arm"]) == (301.25, "candidate")
    both = arms(candidate={"losslessness": wrong.losslessness})
    assert real_figures(report(arms=(*both, wrong))).stands_on["candidate_arm"] == "driven"


def test_the_plan_of_batches_has_the_arms_that_its_figures_need() -> None:
    """Its speeds are made up here; the arms and their settings are the plan's own."""
    plan = load_job("h200-batching-real").plan
    like = pieces.arm("stock")
    made = tuple(
        msgspec.structs.replace(
            like, name=arm.name, kind=arm.kind, params=dict(arm.params), tokens_per_second=100.0 + number
        )
        for number, arm in enumerate(plan.arms)
    )
    found = real_figures(report(arms=made))
    assert found.stands_on["stock_arm"] == "stock-k3"
    assert found.stands_on["candidate_arm"] == "candidate-driven"
    params = {arm.name: dict(arm.params) for arm in plan.arms}
    assert params["candidate"] == {**params["candidate-driven"], "batch_cohorts": True}


def test_an_invalid_run_or_other_arms_have_no_figures() -> None:
    with pytest.raises(UsageError, match="the run is invalid"):
        real_figures(report(status="invalid"))
    with pytest.raises(UsageError, match="0 arms are own_ar"):
        real_figures(report(arms=arms(own_ar={"params": {"drafter": "ngram"}})))
    with pytest.raises(UsageError, match="0 arms are candidate"):
        real_figures(report(arms=tuple(one for one in arms() if one.name != "candidate")))
    with pytest.raises(UsageError, match="0 arms are stock"):
        real_figures(report(arms=tuple(one for one in arms() if one.name != "stock")))
    with pytest.raises(UsageError, match="no request of arm stock"):
        real_figures(report(arms=arms(stock={"tokens_per_second": None})))


def test_the_commands_put_runs_into_a_summary_beside_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"one": report(), "many": report(arms=arms(candidate={"tokens_per_second": 999.0}))}

    def load(root: Path) -> stored.StoredRun:
        return stored.StoredRun(made[root.name].job, (), (), made[root.name])

    monkeypatch.setattr(stored, "load_run", load)
    out = tmp_path / "summary.json"
    out.write_text('{"system": {"32": {"candidate": 1.0}}, "real": {"single": {"ar": 5.0}}}')
    assert main(["batching", "real", "--batch32", "many", "--out", str(tmp_path)]) == 0
    found = json.loads(out.read_text())
    assert found["system"] == {"32": {"candidate": 1.0}}
    assert found["real"]["single"] == {"ar": 5.0}
    assert found["real"]["batch32"]["candidate"] == 999.0
    assert main(["batching", "real", "--single", "one", "--out", str(tmp_path)]) == 0
    assert json.loads(out.read_text())["real"]["single"]["candidate"] == 301.25
    assert main(["engine", "real", "one", "--out", str(tmp_path)]) == 0
    assert json.loads(out.read_text())["real_single"]["own_ar"] == 150.0
    judged = made["one"].losslessness
    assert judged is not None
    made["one"] = report(losslessness=msgspec.structs.replace(judged, stock_verdict="violated"))
    assert main(["engine", "real", "one", "--out", str(tmp_path)]) == 1
    out.write_text("[]")
    assert main(["engine", "real", "one", "--out", str(tmp_path)]) == 3
    assert main(["batching", "real", "--out", str(tmp_path)]) == 3
