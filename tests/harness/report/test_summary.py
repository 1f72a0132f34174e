from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.errors import UsageError
from harness.report.summary import drafter_summary
from harness.results import ArmResult, Report
from tests.harness.report import build, pieces

TOLD: dict[str, Any] = {
    "engine": {"checkpoints": {"stock": "x"}, "drafters": {"ar": "none", "stock": "dflash", "null": "null"}}
}


def lengths(arm: ArmResult, **told: tuple[float | None, float]) -> ArmResult:
    """An arm with these lengths, without and with repetitions."""
    base = pieces.on_set("stock", "any")
    return msgspec.structs.replace(
        arm,
        acceptance_by_set=tuple(
            msgspec.structs.replace(base, set_name=name, length=plain, length_with_degenerate=all_of_it)
            for name, (plain, all_of_it) in told.items()
        ),
    )


def report(arm: ArmResult, **changes: Any) -> Report:
    made = build.report(backends=TOLD)
    sets = tuple(
        msgspec.structs.replace(made.sets[0], name=name, source="embedded" if name == "own" else "folder")
        for name in ("math", "code", "own")
    )
    arms = tuple(arm if one.name == arm.name else one for one in made.arms)
    return msgspec.structs.replace(made, sets=sets, arms=arms, **changes)


STOCK = lengths(pieces.arm("stock"), math=(3.0, 3.5), code=(2.0, 4.0), own=(9.0, 9.0))


def test_keys_are_trained_drafters_and_the_mean_weighs_public_sets_alike() -> None:
    found = drafter_summary(report(STOCK))
    assert found["tau"] == {"dflash": {"math": 3.0, "code": 2.0, "mean": 2.5}}
    assert found["tau_with_degenerate"] == {"dflash": {"math": 3.5, "code": 4.0, "mean": 3.75}}
    assert found["tau_embedded"] == {"dflash": {"own": 9.0}}
    assert found["drafts"] == 3


def test_the_verdict_is_that_of_the_run() -> None:
    made = report(STOCK)
    found = drafter_summary(made)
    assert made.losslessness is not None
    assert found["tokens"] == made.losslessness.tokens > 0
    assert found["stock_verdict"] == made.losslessness.stock_verdict
    assert found["self_exact"] == made.losslessness.self_exact
    assert drafter_summary(report(STOCK, losslessness=None))["stock_verdict"] == "not-judged"


def test_a_set_of_repetitions_alone_leaves_no_mean() -> None:
    arm = lengths(pieces.arm("stock"), math=(None, 3.5), code=(2.0, 4.0))
    assert drafter_summary(report(arm))["tau"]["dflash"] == {"math": None, "code": 2.0, "mean": None}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(report(STOCK, backends={"engine": {}}), "no arm has a drafter with weights", id="none"),
        pytest.param(
            report(STOCK, backends={"engine": {"checkpoints": {"stock": "", "replay": ""}}}),
            "",
            id="by arm name",
        ),
        pytest.param(
            report(msgspec.structs.replace(STOCK, acceptance_by_set=None)),
            "arm stock: its report does not tell acceptance on each set",
            id="an old report",
        ),
        pytest.param(
            report(
                STOCK,
                backends={
                    "engine": {
                        "checkpoints": {"stock": "", "replay": ""},
                        "drafters": {"stock": "dflash", "replay": "dflash"},
                    }
                },
            ),
            "two arms have the drafter dflash",
            id="twice the same",
        ),
    ],
)
def test_what_cannot_be_summarised_says_why(made: Report, message: str) -> None:
    if not message:
        assert set(drafter_summary(made)["tau"]) == {"stock", "replay"}
        return
    with pytest.raises(UsageError, match=message):
        drafter_summary(made)
