"""The tiny target and one server on it for a whole module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.plan import Deployment
from tests.harness.tiny import deployment_of, write_llama
from tests.reference_mechanisms.serving.running import Client, serving


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = write_llama(tmp_path_factory.mktemp("serving") / "target", seed=3)
    return deployment_of(folder)


@pytest.fixture(scope="package")
def deployment_file(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file, for the command line."""
    path = tmp_path_factory.mktemp("deployment") / "tiny.toml"
    path.write_text(
        'schema = "deployment/1"\nname = "tiny"\ndevice = "cpu"\ncontext_length = 128\nthreads = 1\n'
        f'[target]\npath = "{deployment.target.path}"\ndtype = "float32"\n'
    )
    return path


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[Client]:
    with serving(deployment, {"drafter": "ngram", "drafts": 4}) as found:
        yield found
