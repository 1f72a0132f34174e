from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.reference_mechanisms.interpreting import quick_interpreter


@contextmanager
def torch_threads(count: int) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield count
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[int]:
    """Models this small gain nothing from a second thread, and lose a lot when the cores are busy."""
    with torch_threads(1) as count:
        yield count


@pytest.fixture(autouse=True, scope="session")
def quick() -> Iterator[None]:
    """Kernels of Triton, where there is no GPU."""
    with quick_interpreter():
        yield


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(one_thread: int, request: pytest.FixtureRequest) -> Iterator[int]:
    with torch_threads(request.param) as count:
        yield count
