from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sealed_evals.campaign.vault import CampaignFolder
from tests.sealed_evals.campaign import build


@pytest.fixture(autouse=True)
def _needs_cryptography() -> None:
    pytest.importorskip("cryptography", reason="not installed: pip install -e '.[campaign]'")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> build.Place:
    pytest.importorskip("cryptography")
    return build.start(tmp_path_factory.mktemp("made"))


@pytest.fixture
def place(made: build.Place, tmp_path: Path) -> build.Place:
    """A fresh copy of a campaign of three shards."""
    at = Path(shutil.copytree(made.root.parent, tmp_path / "copy"))
    return build.Place(CampaignFolder(at / "campaign"), at / "controller", made.campaign)
