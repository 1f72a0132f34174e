from __future__ import annotations

from pathlib import Path

import pytest

from reference_mechanisms.arms import ArmSettings, ParameterError, parse_settings


def test_defaults_are_filled_in() -> None:
    assert parse_settings({"drafter": "ngram"}) == ArmSettings(
        drafter="ngram", drafts=7, ngram_min=2, ngram_max=4
    )
    assert parse_settings({"drafter": "none"}).drafts == 0
    assert parse_settings({"drafter": "none"}).graphs is True


def test_graphs_are_switched_off_for_any_drafter(tmp_path: Path) -> None:
    folder = str(tmp_path)
    for params in ({"drafter": "none"}, {"drafter": "replay"}, {"drafter": "ngram"}):
        assert parse_settings({**params, "graphs": False}).graphs is False
    assert parse_settings({"drafter": "eagle3", "checkpoint": folder, "graphs": False}).graphs is False
    with pytest.raises(ParameterError, match="`graphs` must be true or false, got 1"):
        parse_settings({"drafter": "none", "graphs": 1})


def test_without_a_folder_a_trained_drafter_is_the_shipped_one() -> None:
    settings = parse_settings({"drafter": "dspark", "drafts": 5})
    assert settings == ArmSettings(drafter="dspark", drafts=5)
    assert settings.trained
    assert not parse_settings({"drafter": "ngram"}).trained


def test_a_trained_drafter_drafts_as_many_as_its_checkpoint_unless_told(tmp_path: Path) -> None:
    params = {"drafter": "dspark", "checkpoint": str(tmp_path)}
    assert parse_settings(params) == ArmSettings(drafter="dspark", drafts=0, checkpoint=str(tmp_path))
    told = parse_settings(
        params | {"drafts": 3, "draft_sample_method": "probabilistic", "min_confidence": 0.5}
    )
    assert (told.drafts, told.sampled, told.min_confidence) == (3, True, 0.5)


def test_a_tree_has_as_many_rows_as_nodes_and_the_anchor(tmp_path: Path) -> None:
    params = {"drafter": "dflash", "checkpoint": str(tmp_path), "drafts": 5}
    assert (parse_settings(params).tree, parse_settings(params).rows) == (None, 6)
    told = parse_settings(params | {"tree": 16})
    assert (told.tree, told.drafts, told.rows) == (16, 5, 17)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        pytest.param({"tree": 0}, "`tree` must be an integer in 1..64", id="no node"),
        pytest.param({"tree": 65}, "`tree` must be an integer in 1..64", id="too many nodes"),
        pytest.param(
            {"tree": 4, "draft_sample_method": "probabilistic"}, "would hang on the draws", id="drawn tree"
        ),
        pytest.param({"tree": 4, "min_confidence": 0.5}, "belong to one chain", id="tree with confidences"),
        pytest.param({"checkpoint": None}, "`checkpoint` must be the folder of a dspark", id="no folder"),
        pytest.param({"checkpoint": "/no/such/folder"}, "got '/no/such/folder'", id="no such folder"),
        pytest.param({"drafts": 0}, "`drafts` must be an integer in 1..32", id="no drafts"),
        pytest.param({"draft_sample_method": "best"}, "`draft_sample_method` must be one of", id="method"),
        pytest.param({"min_confidence": 1.0}, "`min_confidence` must be", id="always unsure"),
        pytest.param({"min_confidence": True}, "`min_confidence` must be", id="a truth value"),
        pytest.param(
            {"drafter": "dflash", "min_confidence": 0.5}, "`min_confidence` is unknown", id="dflash"
        ),
        pytest.param({"ngram_min": 1}, "`ngram_min` is unknown", id="of another drafter"),
    ],
)
def test_a_wrong_parameter_of_a_trained_drafter_is_refused_by_name(
    tmp_path: Path, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_settings({"drafter": "dspark", "checkpoint": str(tmp_path)} | params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        pytest.param(
            {}, "`drafter` must be one of none, ngram, null, replay, dflash, dflash2", id="none given"
        ),
        pytest.param({"drafter": "eagle"}, "got 'eagle'", id="unknown drafter"),
        pytest.param({"drafter": "ngram", "tree": 3}, "`tree` is unknown", id="a tree of another drafter"),
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
