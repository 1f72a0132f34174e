from __future__ import annotations

import pytest

from reference_mechanisms.arms import ArmSettings, ParameterError, parse_settings


def test_defaults_are_filled_in() -> None:
    assert parse_settings({"drafter": "ngram"}) == ArmSettings(
        drafter="ngram", drafts=7, ngram_min=2, ngram_max=4
    )
    assert parse_settings({"drafter": "none"}).drafts == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        pytest.param({}, "`drafter` must be one of none, ngram, null, replay, got None", id="none given"),
        pytest.param({"drafter": "eagle"}, "got 'eagle'", id="unknown drafter"),
        pytest.param({"drafter": "none", "drafts": 3}, "`drafts` is unknown", id="drafts without a drafter"),
        pytest.param(
            {"drafter": "replay", "ngram_max": 3}, "`ngram_max` is unknown", id="of another drafter"
        ),
        pytest.param({"drafter": "ngram", "draft": 3}, "takes `drafts`, `ngram_min`, `ngram_max`", id="typo"),
        pytest.param({"drafter": "ngram", "drafts": 0}, "`drafts` must be an integer in 1..32", id="zero"),
        pytest.param(
            {"drafter": "ngram", "drafts": 33}, "`drafts` must be an integer in 1..32", id="too many"
        ),
        pytest.param({"drafter": "ngram", "drafts": True}, "got True", id="a truth value"),
        pytest.param({"drafter": "ngram", "drafts": 2.0}, "got 2.0", id="a float"),
        pytest.param(
            {"drafter": "ngram", "ngram_min": 5}, "`ngram_min` is 5, above `ngram_max`", id="crossed"
        ),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(params: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_settings(params)
