"""A recording keeps what it was recorded from."""

from __future__ import annotations

import contextlib
import gc
import weakref
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


def test_constants_of_a_program_live_as_long_as_its_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows addresses only: memory that is given back is soon another's."""
    for name in ("CUDAGraph", "Stream"):
        monkeypatch.setattr(torch.cuda, name, Stub)
    monkeypatch.setattr(torch.cuda, "current_stream", Stub)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", tuple)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: contextlib.nullcontext())
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
