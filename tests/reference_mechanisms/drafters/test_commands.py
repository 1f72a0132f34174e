from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from harness.cli import main
from reference_mechanisms.drafters.card import write_card
from reference_mechanisms.drafters.publishing import published
from reference_mechanisms.drafters.shipped import shipped
from reference_mechanisms.drafters.storing import store
from tests.reference_mechanisms.drafters.networks import dflash
from tests.reference_mechanisms.drafters.test_card import CARD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network = dflash(vocab=2048)
    store(network, published(network.config, 512), tmp_path / "stored", {"fc.weight": 8})
    return tmp_path / "stored"


def test_the_shipped_drafters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drafters", "list"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == max(len(shipped()), 1)


def test_an_export_is_written_as_told(folder: Path, tmp_path: Path) -> None:
    assert main(["drafters", "export", str(folder), str(tmp_path / "out"), "--dtype", "float32"]) == 0
    assert {str(t.dtype) for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        "torch.float32"
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["DFlashDraftModel"]


def test_a_card_is_printed_or_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_card(CARD, folder)
    (folder / "README.md").unlink()
    assert main(["drafters", "card", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# dspark for tiny")
    assert main(["drafters", "card", str(folder), "--write"]) == 0
    assert (folder / "README.md").read_text() == printed


@pytest.mark.parametrize(
    "action", [["card", "none/such"], ["export", "none/such", "out"]], ids=["card", "export"]
)
def test_a_name_that_is_not_there_is_a_clear_error(
    action: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drafters", *action]) != 0
    assert "none/such is no folder and no shipped drafter" in capsys.readouterr().err
