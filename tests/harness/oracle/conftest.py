from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.paths import RunFolder
from tests.harness.oracle.runs import TinyRun
from tests.harness.tiny import write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return TinyRun(write_llama(tmp_path_factory.mktemp("tiny-model"), seed=3))


@pytest.fixture(scope="session")
def written(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return tiny.write(tmp_path_factory.mktemp("tiny-run"))


@pytest.fixture
def folder(written: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, free to be forged."""
    return RunFolder(Path(shutil.copytree(written.root, tmp_path / "run")))
