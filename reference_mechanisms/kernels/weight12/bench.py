"""Time the linears of a decoder's step: cuBLAS, the bf16 twin and weight12, cold, in one run.

Each implementation is one CUDA graph of the whole step in which every product reads what the one before
it wrote. Layers rotate over a few copies of their weights, more than a gigabyte apart, so nothing is left in
L2 from the layer before. Isolated shapes rotate over the same copies. Graphs are replayed in turn.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw
from reference_mechanisms.kernels.weight12.compiling import READING_ENTRY, compile_text, reading_source
from reference_mechanisms.kernels.weight12.driver import architecture, attribute, check, driver, grid, load
from reference_mechanisms.kernels.weight12.launching import linear
from reference_mechanisms.kernels.weight12.models import Model, Shape
from reference_mechanisms.kernels.weight12.packing import pack
from reference_mechanisms.kernels.weight12.schedule import CHOICE, CHOICES_BY_NAME

TOKENS = (1, 8, 16, 32)
ROTATION_BYTES = 1 << 30  # of packed weights between two readings of the same copy
CALLS = 24  # of an isolated shape in a graph
READ_BLOCK = 1 << 16  # bytes that a CTA of the reading kernel takes at once
READ_THREADS = 512

Call = Callable[[Tensor, Any, Tensor], object]
CALLS_OF: Mapping[str, Call] = {
    "cublas": lambda x, w, out: torch.matmul(x, w.t(), out=out),
    "twin": linear,
    "weight12": linear,
}


def calls_of(variants: Sequence[str]) -> dict[str, Call]:
    """What is timed, by name: cuBLAS, the twin, weight12 as it is, and in other ways of `CHOICES_BY_NAME`."""
    found = dict(CALLS_OF)
    for name in variants:
        found[f"weight12 {name}"] = functools.partial(linear, choice=CHOICES_BY_NAME[name])
    return found


def bench(
    model: Model, tokens: Sequence[int] = TOKENS, rounds: int = 15, variants: Sequence[str] = ()
) -> dict[str, Any]:
    """Milliseconds of a step and microseconds of each shape.

    Args:
        model: whose linears.
        tokens: rows of x, each measured by itself.
        rounds: replays of each graph, interleaved between implementations.
        variants: other ways of weight12, of `CHOICES_BY_NAME`, by name.

    Returns:
        `step_linears_ms` [implementation][tokens], `step_bytes`, `shapes`, and `other_bits`, what did not
        give the bits of the twin: a JSON object.
    """
    calls = calls_of(variants)
    weights = _Weights(model, calls)
    wrong = [found for m in tokens for found in _other_bits(model, weights, m)]
    step: dict[str, dict[str, float]] = {name: {} for name in calls}
    for m in tokens:
        graphs = {name: _graph(_step(model, weights, name, m)) for name in calls}
        for name, value in _interleaved(graphs, rounds).items():
            step[name][str(m)] = value
        del graphs
    sizes = {name: sum(_bytes(weights.of[name][shape][0]) for shape in model.step) for name in weights.of}
    return {
        "step_linears_ms": step,
        "step_bytes": sizes,
        "shapes": _shapes(model, weights, tokens, rounds),
        "other_bits": wrong,
    }


def _other_bits(model: Model, weights: _Weights, m: int) -> list[str]:
    """Which implementations differ from the twin in their way, and where; cuBLAS has orders of its own."""
    found = []
    for shape in model.shapes:
        x = torch.randn((m, shape[1]), device="cuda").bfloat16()
        for name, call in weights.calls.items():
            if name == "cublas":
                continue
            outs = []
            for whose, product in ((name, call), ("twin", _twin_of(weights, name))):
                outs.append(torch.full((m, shape[0]), float("nan"), device="cuda", dtype=torch.bfloat16))
                product(x, weights.of[whose][shape][0], outs[-1])
            torch.cuda.synchronize()
            if not torch.equal(outs[0].view(torch.int16), outs[1].view(torch.int16)):
                found.append(f"{name}, {shape[0]}x{shape[1]}, {m} tokens")
    return found


def _twin_of(weights: _Weights, name: str) -> Call:
    """The twin as it is, whose bits all ways without wgmma share; with wgmma, the twin in the same way."""
    choices = (CHOICE, CHOICES_BY_NAME.get(name.removeprefix("weight12 "), CHOICE))
    wgmma = any(way.wgmma for choice in choices for way in choice.values())
    return weights.calls[name if wgmma else "twin"]


class _Weights:
    """Every shape of a model in each implementation, in as many copies as keep L2 cold."""

    def __init__(self, model: Model, calls: Mapping[str, Call]) -> None:
        self.calls = calls
        self.of: dict[str, dict[Shape, list[Any]]] = {name: {} for name in CALLS_OF}
        for name in calls:  # other ways read the same weights
            self.of.setdefault(name, self.of["weight12"])
        for shape in model.shapes:
            copies = max(
                1, min(model.step.count(shape), -(-ROTATION_BYTES // (shape[0] * shape[1] * 3 // 2)))
            )
            weight = torch.randn(shape, device="cuda").mul_(shape[1] ** -0.5).bfloat16()
            twin, packed = arrange_raw(weight), arrange(pack(weight), shape[1])
            self.of["cublas"][shape] = [weight.clone() for _ in range(copies)]
            self.of["twin"][shape] = [_copy(twin) for _ in range(copies)]
            self.of["weight12"][shape] = [_copy(packed) for _ in range(copies)]
        torch.cuda.synchronize()


def _copy(weight: Arranged) -> Arranged:
    numbers = None if weight.numbers is None else weight.numbers.clone()
    return dataclasses.replace(weight, units=weight.units.clone(), numbers=numbers)


def _bytes(weight: Tensor | Arranged) -> int:
    return weight.stored_bytes if isinstance(weight, Arranged) else 2 * weight.numel()


def _step(model: Model, weights: _Weights, name: str, m: int) -> Callable[[], None]:
    """One step: every product reads the first K columns of what the product before it wrote."""
    call = weights.calls[name]
    start = torch.randn((m, model.step[0][1]), device="cuda").bfloat16()
    outs = {shape: torch.empty((m, shape[0]), device="cuda", dtype=torch.bfloat16) for shape in model.shapes}

    def run() -> None:
        x, used = start, dict.fromkeys(model.shapes, 0)
        for shape in model.step:
            copies = weights.of[name][shape]
            call(x[:, : shape[1]], copies[used[shape] % len(copies)], outs[shape])
            used[shape] += 1
            x = outs[shape]

    return run


def _shapes(model: Model, weights: _Weights, tokens: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for shape in model.shapes:
        for m in tokens:
            graphs = {name: _graph(_isolated(weights, name, shape, m)) for name in weights.calls}
            times = {name: 1e3 * ms / CALLS for name, ms in _interleaved(graphs, rounds).items()}
            size = {name: _bytes(weights.of[name][shape][0]) for name in times}
            rows.append(
                {
                    "shape": list(shape),
                    "tokens": m,
                    "us": times,
                    "tb_s": {name: size[name] / times[name] / 1e6 for name in times},
                    "over_cublas": times["cublas"] / times["weight12"],
                    "over_twin": times["twin"] / times["weight12"],
                }
            )
    return rows


def _isolated(weights: _Weights, name: str, shape: Shape, m: int) -> Callable[[], None]:
    call, copies = weights.calls[name], weights.of[name][shape]
    x = torch.randn((m, shape[1]), device="cuda").bfloat16()
    out = torch.empty((m, shape[0]), device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for i in range(CALLS):
            call(x, copies[i % len(copies)], out)

    return run


def _graph(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def _interleaved(graphs: Mapping[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, float]:
    """Median milliseconds of each graph; every round replays each once, after two rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 2):
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(stop))
    return {name: statistics.median(taken) for name, taken in times.items()}


def read_bandwidth(rounds: int = 9, size: int = 1 << 32) -> float:
    """Terabytes a second of a kernel that reads `size` bytes once and does nothing else: the ceiling."""
    device = torch.cuda.current_device()
    function = load(compile_text(reading_source(), architecture(device)), READING_ENTRY, device)
    values = torch.randint(0, 1 << 30, (size // 4,), device="cuda", dtype=torch.int32)
    sink = torch.zeros(1, device="cuda", dtype=torch.int32)
    blocks = size // READ_BLOCK
    arguments = (values.data_ptr(), blocks, sink.data_ptr())
    types = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)

    def read(ctas: int) -> Callable[[], object]:
        return lambda: check(
            driver().cuLaunchKernelEx(grid(ctas, READ_THREADS), function, (arguments, types), 0)
        )

    persistent = 4 * attribute("MULTIPROCESSOR_COUNT", device)
    graphs = {str(ctas): _graph(read(ctas)) for ctas in (persistent, blocks)}
    return size / min(_interleaved(graphs, rounds).values()) / 1e9
