"""The tiny target and one server on it for a whole module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.plan import Deployment
from tests.harness.tiny import deployment_of, write_llama
from tests.reference_mechanisms.serving.running import Client, serving


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = write_llama(tmp_path_factory.mktemp("serving") / "target", seed=3)
    return deployment_of(folder)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[Client]:
    with serving(deployment, {"drafter": "ngram", "drafts": 4}) as found:
        yield found
