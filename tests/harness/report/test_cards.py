"""What a report says for the model cards of its drafters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.errors import UsageError
from harness.report.cards import card_figures
from harness.results import Report
from reference_mechanisms.drafters.card import Measured, with_measured
from reference_mechanisms.errors import DrafterError
from tests.harness.report import build, pieces
from tests.harness.report.test_summary import STOCK, report
from tests.reference_mechanisms.drafters.test_card import CARD, MEASURED

SHA = "ab" * 32


def told(**changes: Any) -> dict[str, Any]:
    own = {
        "checkpoints": {"stock": "x"},
        "drafters": {"ar": "none", "stock": "dflash"},
        "checkpoint_sha256": {"stock": SHA},
        "device": "cpu",
    }
    return {"engine": {key: value for key, value in (own | changes).items() if value is not None}}


def made(**changes: Any) -> Report:
    return report(STOCK, **({"backends": told()} | changes))


def test_the_figures_are_those_of_the_arm_on_each_set() -> None:
    (found,) = card_figures(made(), "cd" * 32, "reports/some")
    assert (found.drafter, found.weights_sha256) == ("dflash", SHA)
    measured = msgspec.convert(found.measured, Measured)
    assert list(measured.sets) == ["math", "code", "own"]
    math = measured.sets["math"]
    base = pieces.on_set("stock", "any")
    assert (math.tau, math.tau_with_degenerate) == (3.0, 3.5)
    assert (math.prompts, math.degenerate) == (base.responses, base.degenerate)
    assert (math.survival, math.conditional) == (base.survival, base.conditional)
    assert (measured.mean, measured.embedded) == (2.5, ("own",))  # the set in the package is beside the mean
    assert (measured.report, measured.report_sha256) == ("reports/some", "cd" * 32)
    assert measured.drafts == len(base.survival)


def test_the_machine_is_the_one_that_decoded() -> None:
    gpus = [{"name": "one accelerator"}]
    environment = build.report().environment | {"gpus": gpus}
    on_gpu = made(environment=environment, backends=told(device="cuda:0"))
    assert card_figures(on_gpu, SHA, "x")[0].measured["machine"] == "one accelerator"
    beside = made(environment=environment)
    assert "one accelerator" not in card_figures(beside, SHA, "x")[0].measured["machine"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "invalid", "reasons": ("busy",)}, r"invalid \(busy\)"),
        ({"backends": {"engine": {}}}, "no arm has a drafter with weights"),
        ({"backends": told(checkpoint_sha256=None)}, "`checkpoint_sha256` of stock is missing"),
    ],
)
def test_a_report_that_cannot_stand_behind_a_card_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        card_figures(made(**changes), SHA, "x")


def test_a_later_run_of_the_same_plan_takes_the_place_of_the_first() -> None:
    weights = CARD.stored.sha256
    other = msgspec.structs.replace(MEASURED, plan="other")
    later = msgspec.structs.replace(MEASURED, date="2027-01-01")
    card = with_measured(with_measured(CARD, other, weights), MEASURED, weights)
    assert with_measured(card, later, weights).measured == (other, later)


def test_figures_of_other_weights_are_refused() -> None:
    with pytest.raises(DrafterError, match=r"`stored.sha256`"):
        with_measured(CARD, MEASURED, SHA)
