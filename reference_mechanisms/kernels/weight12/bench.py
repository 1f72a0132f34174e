"""Time the linears of a decoder's step: cuBLAS, the bf16 twin and weight12, cold, in one run.

Each implementation is one CUDA graph of the whole step in which every product reads what the one before
it wrote. Every layer has weights of its own, 11 to 15 GB in all, so nothing is left in L2 from the step
before. Isolated shapes rotate over copies that together exceed L2 several times.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged, arrange, arrange_raw
from reference_mechanisms.kernels.weight12.launching import linear
from reference_mechanisms.kernels.weight12.packing import pack

TOKENS = (1, 8, 16, 32)
ROTATION_BYTES = 1 << 29
CALLS = 24  # of an isolated shape in a graph


@dataclass(frozen=True, slots=True)
class Model:
    """Linears of a decoder: those of a layer in their order [N, K], how many layers, and the head."""

    layer: tuple[tuple[int, int], ...]
    layers: int
    head: tuple[int, int]


QWEN3_8B = Model(((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)), 36, (151936, 4096))


def bench(model: Model = QWEN3_8B, tokens: Sequence[int] = TOKENS, rounds: int = 15) -> dict[str, Any]:
    """Milliseconds of a step, microseconds of each shape, read bandwidth: a JSON object.

    Args:
        model: whose linears.
        tokens: rows of x, each measured by itself.
        rounds: replays of each graph, interleaved between implementations.
    """
    weights = _Weights(model)
    step: dict[str, dict[str, float]] = {name: {} for name in weights.calls}
    for m in tokens:
        graphs = {name: _graph(_step(model, weights, name, m)) for name in weights.calls}
        for name, value in _interleaved(graphs, rounds).items():
            step[name][str(m)] = value
        del graphs
    return {
        "device": torch.cuda.get_device_name(),
        "step_linears_ms": step,
        "shapes_us": _shapes(model, weights, tokens, rounds),
        "read_bandwidth_tb_s": read_bandwidth(rounds),
        "bytes": {name: weights.bytes(name) for name in weights.calls},
    }


class _Weights:
    """Every matrix of a model three times: as it is, arranged for the twin, packed and arranged."""

    calls: Mapping[str, Callable[[Tensor, Any, Tensor], object]]

    def __init__(self, model: Model) -> None:
        self.of: dict[str, dict[tuple[int, int], list[Any]]] = {"cublas": {}, "twin": {}, "weight12": {}}
        for shape in dict.fromkeys((*model.layer, model.head)):
            copies = model.layers if shape in model.layer else 1
            weight = torch.randn(shape, device="cuda").mul_(shape[1] ** -0.5).bfloat16()
            twin, packed = arrange_raw(weight), arrange(pack(weight), shape[1])
            self.of["cublas"][shape] = [weight.clone() for _ in range(copies)]
            self.of["twin"][shape] = [_copy(twin) for _ in range(copies)]
            self.of["weight12"][shape] = [_copy(packed) for _ in range(copies)]
        self.calls = {
            "cublas": lambda x, w, out: torch.matmul(x, w.t(), out=out),
            "twin": linear,
            "weight12": linear,
        }
        torch.cuda.synchronize()

    def bytes(self, name: str) -> int:
        """Bytes of the weights of a step."""
        return sum(_bytes(w) for copies in self.of[name].values() for w in copies)


def _copy(weight: Arranged) -> Arranged:
    return Arranged(
        rows=weight.rows,
        columns=weight.columns,
        split=weight.split,
        units=weight.units.clone(),
        palettes=weight.palettes,
        raw_rows=weight.raw_rows,
    )


def _bytes(weight: Tensor | Arranged) -> int:
    return weight.stored_bytes if isinstance(weight, Arranged) else 2 * weight.numel()


def _step(model: Model, weights: _Weights, name: str, m: int) -> Callable[[], None]:
    """One step: every product reads the first K columns of what the product before it wrote."""
    call = weights.calls[name]
    shapes = [*model.layer * model.layers, model.head]
    start = torch.randn((m, max(k for _, k in shapes)), device="cuda").bfloat16()
    outs = {shape: torch.empty((m, shape[0]), device="cuda", dtype=torch.bfloat16) for shape in shapes}

    def run() -> None:
        x, used = start, dict.fromkeys(shapes, 0)
        for shape in shapes:
            out = outs[shape]
            call(x[:, : shape[1]], weights.of[name][shape][used[shape]], out)
            used[shape] += 1
            x = out

    return run


def _shapes(model: Model, weights: _Weights, tokens: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for shape in dict.fromkeys((*model.layer, model.head)):
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


def _isolated(weights: _Weights, name: str, shape: tuple[int, int], m: int) -> Callable[[], None]:
    call, copies = weights.calls[name], weights.of[name][shape]
    enough = min(len(copies), -(-ROTATION_BYTES // _bytes(copies[0])))
    x = torch.randn((m, shape[1]), device="cuda").bfloat16()
    out = torch.empty((m, shape[0]), device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for i in range(CALLS):
            call(x, copies[i % enough], out)

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
    """Median milliseconds of each graph; every round replays each once, twice after a first round."""
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


def read_bandwidth(rounds: int = 15, size: int = 1 << 31) -> float:
    """Terabytes a second of a sum over `size` bytes: what a reading kernel can reach."""
    values, total = torch.ones(size // 4, device="cuda"), torch.empty((), device="cuda")
    found = _interleaved({"sum": _graph(lambda: torch.sum(values, 0, out=total))}, rounds)
    return size / found["sum"] / 1e9


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bench(), indent=1))
