"""CUDA graphs: a device program recorded once and replayed with one launch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from reference_mechanisms.errors import TargetError

Program = Callable[[], None]  # works on fixed buffers only; may be run any number of times
WARM_UPS = 2  # runs before a recording: libraries and compilers make themselves ready in them


class Graphs:
    """Records programs for one device; all recordings share one pool of memory.

    So no two of them may run at once, and what a program leaves must lie in buffers of its own.
    """

    def __init__(self, device: torch.device, *, records: bool = True) -> None:
        """Record on a CUDA device; elsewhere, or if told not to, programs run as they are."""
        self._device = device
        self.records = records and device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self.records else None

    def program(self, work: Program) -> Program:
        """`work`, recorded; it is run a few times first, on whatever its buffers hold."""
        if not self.records:
            return work
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        with _no_collection(), torch.cuda.graph(graph, pool=self._pool):
            work()
        return _Recording(graph, work)


@dataclass(frozen=True, slots=True)
class _Recording:
    """What was recorded, and what it was recorded from: the constants of that must live as long."""

    graph: torch.cuda.CUDAGraph
    work: Program

    def __call__(self) -> None:
        """Run it again."""
        self.graph.replay()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Cyclic garbage waits in the block: a graph that dies while another is recorded spoils that one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def free_bytes(device: torch.device) -> int:
    """Bytes of a CUDA device that nothing has taken, torch's own reserve among them."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def hold_fit(needed: int, device: torch.device, what: str) -> None:
    """Refuse buffers that do not fit, before they are allocated.

    Raises:
        TargetError: with the bytes needed and free.
    """
    if device.type != "cuda":
        return
    free = free_bytes(device)
    if needed > free:
        raise TargetError(
            f"{what} need {needed} bytes and {free} are free; lower the deployment's context_length"
        )
