"""A recording keeps what it was recorded from, and no graph dies while another is recorded."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from reference_mechanisms.engine.graphs import WARM_UPS, Graphs


class Stub:
    """Stands in for streams, graphs and their contexts."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.replayed = 0

    def wait_stream(self, _: object) -> None:
        """Nothing is under way."""

    def replay(self) -> None:
        self.replayed += 1


class Constant:
    """A tensor that a program reads."""


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No device; the list tells whether a recording is under way."""
    under_way: list[str] = []

    @contextlib.contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        under_way.append("recording")
        yield
        under_way.clear()

    for name in ("CUDAGraph", "Stream"):
        monkeypatch.setattr(torch.cuda, name, Stub)
    monkeypatch.setattr(torch.cuda, "current_stream", Stub)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", tuple)
    monkeypatch.setattr(torch.cuda, "stream", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return under_way


@pytest.mark.usefixtures("stubs")
def test_constants_of_a_program_live_as_long_as_its_recording() -> None:
    """A graph knows addresses only: memory that is given back is soon another's."""
    ran = []

    def recorded() -> tuple[Any, weakref.ref[Constant]]:
        constant = Constant()
        program = Graphs(torch.device("cuda")).program(lambda: ran.append(type(constant)))
        return program, weakref.ref(constant)

    program, constant = recorded()
    gc.collect()
    assert len(ran) == WARM_UPS + 1
    assert constant() is not None
    program()
    assert program.graph.replayed == 1
    assert len(ran) == WARM_UPS + 1


def test_no_graph_dies_while_another_is_recorded(stubs: list[str]) -> None:
    """Old recordings lie in cycles; the end of one is a call that spoils a recording under way."""
    died = []

    class Old:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            died.append(tuple(stubs))

    def work() -> None:
        Old()
        [[] for _ in range(10_000)]

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        Graphs(torch.device("cuda")).program(work)
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
    gc.collect()
    assert died == [()] * (WARM_UPS + 1)
