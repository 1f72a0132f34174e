"""From a profiler's trace to seconds by stage: of the reference engine, or of vLLM. Pure.

Reads Chrome traces as `torch.profiler` writes them. An operation counts once, with all that it calls. On a
CPU its stage is told by its name and by the functions it is called from; on a GPU a kernel's is told by its
name, and by the functions it is launched from where it is not part of a recorded graph. Times between
operations are the host's; starting an operation costs what the machine was measured to take for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.codec import Record
from harness.errors import DataError

DRAFTER, WEIGHTS, ATTENTION, SAMPLING = "drafter", "weights", "attention", "sampling"
HOST, LAUNCH, OTHER = "host", "launch", "other"
CALLED_FROM = ((DRAFTER, ("/drafters/", "spec_decode/")),)  # part of a function's file
# Part of a name in small letters; the first that fits.
NAMES = (
    (ATTENTION, ("attend", "attention", "flash", "fmha", "softmax", "join_chunks", "rotate_write", "paged")),
    (SAMPLING, ("argmax", "topk", "sort", "multinomial", "rejection", "_best", "_settle", "_replay")),
    (
        WEIGHTS,
        ("linear", "matmul", "::mm", "addmm", "gemm", "gemv", "cutlass", "weight12", "stream", "splitk"),
    ),
)
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")


class Stages(Record, frozen=True):
    """Where the time of a traced stretch went."""

    seconds: dict[str, float]  # by stage; together the whole stretch
    operations: int  # that were started
    device: bool  # whether they are kernels of a GPU


class _Span(NamedTuple):
    name: str
    kind: str  # "cpu_op", "python_function", "kernel", ...
    start: float  # microseconds
    end: float
    thread: tuple[object, object]
    link: int | None  # kernels and what launched them share it


def stages_of(trace: bytes, launch_s: float, wall_s: float | None = None) -> Stages:
    """Seconds by stage.

    Args:
        trace: a Chrome trace of `torch.profiler`, JSON; best with stacks.
        launch_s: of starting one operation on this machine.
        wall_s: of the same stretch without a profiler, which slows the host; None takes the trace's own.

    Raises:
        DataError: it is none, or holds no operation.
    """
    spans = _read(trace)
    kernels = [one for one in spans if one.kind in ("kernel", "gpu_memcpy", "gpu_memset")]
    calls = [one for one in spans if one.kind in ("cpu_op", "python_function", "cuda_runtime", "cuda_driver")]
    if kernels:
        return _on_device(kernels, calls, launch_s, wall_s)
    top = _operations(calls)
    seconds: dict[str, float] = {}
    if not top:
        raise DataError(
            "the trace holds no operation; record one with torch.profiler while tokens are decoded"
        )
    for one, stage in top:
        took = (one.end - one.start) / 1e6
        started = min(took, launch_s)
        _add(seconds, LAUNCH, started)
        _add(seconds, stage, took - started)
    return _whole(seconds, [one for one, _ in top], wall_s, len(top), device=False)


def _operations(calls: Sequence[_Span]) -> list[tuple[_Span, str]]:
    """Operations that no other operation called, each with its stage."""
    return [
        (one, _stage(one.name, stack))
        for one, stack in _nested(calls)
        if one.kind == "cpu_op" and not any(above.kind == "cpu_op" for above in stack)
    ]


def _nested(calls: Sequence[_Span]) -> Iterator[tuple[_Span, list[_Span]]]:
    """Every call with those that were under way around it, the outermost first."""
    threads: dict[tuple[object, object], list[_Span]] = {}
    for one in sorted(calls, key=lambda one: (one.start, -one.end)):
        stack = threads.setdefault(one.thread, [])
        while stack and (stack[-1].end <= one.start or stack[-1].end < one.end):
            stack.pop()
        yield one, stack
        stack.append(one)


def _on_device(
    kernels: Sequence[_Span], calls: Sequence[_Span], launch_s: float, wall_s: float | None
) -> Stages:
    """Time of each kernel from the end of the one in front; idle time is the host's."""
    drafting = _launched_by_drafter(calls)
    seconds: dict[str, float] = {}
    end = min(one.start for one in kernels)
    for one in sorted(kernels, key=lambda one: (one.start, one.end)):
        busy = max(0.0, one.end - max(end, one.start)) / 1e6
        _add(seconds, DRAFTER if one.link in drafting else _stage(one.name, ()), busy)
        end = max(end, one.end)
    launches = sum(one.name.startswith(LAUNCHES) for one in calls) or len(kernels)
    whole = _whole(seconds, kernels, wall_s, launches, device=True)
    idle = whole.seconds.get(HOST, 0.0)
    started = min(idle, launches * launch_s)
    split = whole.seconds | {HOST: idle - started, LAUNCH: started}
    return Stages(seconds=split, operations=launches, device=True)


def _launched_by_drafter(calls: Sequence[_Span]) -> set[int]:
    """Links of what a drafter's functions launched."""
    return {
        one.link
        for one, stack in _nested(calls)
        if one.link is not None and one.name.startswith(LAUNCHES) and _from(stack) is not None
    }


def _whole(
    seconds: Mapping[str, float],
    spans: Sequence[_Span],
    wall_s: float | None,
    operations: int,
    *,
    device: bool,
) -> Stages:
    """With the host's part: what is left of the stretch."""
    traced = (max(one.end for one in spans) - min(one.start for one in spans)) / 1e6
    busy = sum(seconds.values())
    host = max(0.0, (traced if wall_s is None else wall_s) - busy)
    return Stages(seconds={**seconds, HOST: host}, operations=operations, device=device)


def _stage(name: str, stack: Iterable[_Span]) -> str:
    above = list(stack)
    drafter = _from(above)
    if drafter is not None:
        return drafter
    small = name.lower()
    by_name = next((stage for stage, parts in NAMES if any(part in small for part in parts)), None)
    if by_name is not None and not (
        by_name == WEIGHTS and "linear" not in small and _inside(above, ATTENTION)
    ):
        return by_name
    return next((stage for stage in (ATTENTION, SAMPLING) if _inside(above, stage)), OTHER)


def _from(stack: Sequence[_Span]) -> str | None:
    for stage, parts in CALLED_FROM:
        if any(one.kind == "python_function" and any(part in one.name for part in parts) for one in stack):
            return stage
    return None


def _inside(stack: Sequence[_Span], stage: str) -> bool:
    """Whether the nearest function says by its own name or file that it is of the stage."""
    nearest = next((one.name.lower() for one in reversed(stack) if one.kind == "python_function"), "")
    return any(part in nearest for part in dict(NAMES)[stage]) or stage in nearest


def _add(seconds: dict[str, float], stage: str, more: float) -> None:
    seconds[stage] = seconds.get(stage, 0.0) + more


def _read(trace: bytes) -> list[_Span]:
    try:
        events = json.loads(trace)["traceEvents"]
        return [_span(one) for one in events if one.get("ph") == "X" and "dur" in one]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            "is no Chrome trace of torch.profiler; write one with `export_chrome_trace`"
        ) from None


def _span(event: Mapping[str, object]) -> _Span:
    start, took = float(str(event["ts"])), float(str(event["dur"]))
    arguments = event.get("args")
    link = arguments.get("correlation") if isinstance(arguments, Mapping) else None
    return _Span(
        name=str(event["name"]),
        kind=str(event.get("cat", "")),
        start=start,
        end=start + took,
        thread=(event.get("pid"), event.get("tid")),
        link=link if isinstance(link, int) else None,
    )
