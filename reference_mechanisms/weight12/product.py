"""y = x W^T and row look-up of packed matrices, wherever they are: the one place that picks a kernel.

Both are operators of torch, so that torch.compile sees one node and CUDA graphs capture it. On Hopper and
Blackwell workstation GPUs up to 64 tokens go through the streaming kernels, elsewhere on CUDA through
Triton. More tokens: blocks of rows are expanded to bf16 in a scratch that stays in the L2 cache, then
multiplied by the BLAS of torch. On a CPU torch does it all.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.weight12 import planes
from reference_mechanisms.weight12.layout import SUFFIXES
from reference_mechanisms.weight12.planes import Planes

Layout = Literal["planes", "stream"]

MAX_TOKENS = 64  # that the kernels take at once
SCRATCH_BYTES = 24 << 20  # of expanded weights: half of an H200's L2
BLOCK_ROWS = 32  # blocks start at multiples of this
STREAMING = (9, 12)  # major compute capabilities that the CUDA kernels are compiled for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """A matrix as the kernel of its device reads it.

    Attributes:
        layout: "planes", the arrays of the format, or "stream", the units of the CUDA kernels.
        rows: N.
        columns: K.
        tensors: what the layout consists of.
    """

    layout: Layout
    rows: int
    columns: int
    tensors: tuple[Tensor, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


class _Kernels(NamedTuple):
    """What a layout can do; the tensors are those of `Stored`, the range or ids are rows."""

    few: Callable[
        [Tensor, Sequence[Tensor], int, int], Tensor
    ]  # x of up to 64 tokens, tensors, rows, columns
    decode: Callable[[Sequence[Tensor], int, int, Tensor | range, Tensor], Tensor]  # .. rows wanted, out


def store(matrix: Planes) -> Stored:
    """Bring a matrix into the layout of its device; it is complete when this returns."""
    if not streams(matrix.device):
        slots = (matrix.raw_slots(),) if len(matrix.rawrow) else ()
        tensors = (*matrix.arrays().values(), *slots)
        return Stored(layout="planes", rows=matrix.rows, columns=matrix.columns, tensors=tensors)
    from reference_mechanisms.kernels.weight12.arrange import arrange  # noqa: PLC0415 - CUDA only

    found = arrange(matrix.arrays(), matrix.columns)
    torch.cuda.synchronize(matrix.device)  # launches may overlap the one before
    parts = (found.units, found.numbers, found.palettes, found.highs)
    tensors = tuple(part for part in parts if part is not None)
    return Stored(layout="stream", rows=matrix.rows, columns=matrix.columns, tensors=tensors)


def streams(device: torch.device) -> bool:
    """Whether the CUDA kernels run on this device."""
    if device.type != "cuda" or importlib.util.find_spec("cuda.core") is None:
        return False
    return torch.cuda.get_device_capability(device)[0] in STREAMING


def linear(x: Tensor, weight: Stored, bias: Tensor | None = None) -> Tensor:
    """X W^T + b, [..., N] of bf16 x [..., K]."""
    return apply(x, weight.tensors, (weight.layout, weight.rows, weight.columns), bias)


def apply(
    x: Tensor, tensors: Sequence[Tensor], form: tuple[Layout, int, int], bias: Tensor | None = None
) -> Tensor:
    """The same with a matrix in pieces, for modules that keep the tensors themselves.

    Args:
        x: [..., K] bf16.
        tensors: of `Stored`.
        form: its layout, rows and columns.
        bias: [N], added to the rounded product.
    """
    layout, rows, columns = form
    flat = x.reshape(-1, columns)
    out: Tensor = torch.ops.specpilot.weight12_linear(flat, list(tensors), rows, columns, layout)
    if bias is not None:
        out = out + bias
    return out.reshape(*x.shape[:-1], rows)


def embed(ids: Tensor, weight: Stored) -> Tensor:
    """Rows [..., K] of ids [...]."""
    return look_up(ids, weight.tensors, (weight.layout, weight.rows, weight.columns))


def look_up(ids: Tensor, tensors: Sequence[Tensor], form: tuple[Layout, int, int]) -> Tensor:
    """The same with a matrix in pieces, as in `apply`."""
    layout, rows, columns = form
    flat = ids.reshape(-1).long()
    out: Tensor = torch.ops.specpilot.weight12_rows(flat, list(tensors), rows, columns, layout)
    return out.reshape(*ids.shape, columns)


def by_parts(x: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """`multiply` of x [rows, K], more than 64 rows as several products, so that none notices how many."""
    found = [multiply(part) for part in torch.split(x, MAX_TOKENS)]
    return found[0] if len(found) == 1 else torch.cat(found)


def expand(weight: Stored, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` in bf16, [n, K]."""
    out = torch.empty((stop - start, weight.columns), dtype=torch.bfloat16, device=weight.tensors[0].device)
    decode = _kernels(weight.layout, out.device).decode
    return decode(weight.tensors, weight.rows, weight.columns, range(start, stop), out)


@torch.library.custom_op("specpilot::weight12_linear", mutates_args=())
def _linear(x: Tensor, tensors: Sequence[Tensor], rows: int, columns: int, layout: str) -> Tensor:
    kernels = _kernels(layout, x.device)
    if not len(x):
        return x.new_empty((0, rows))
    if len(x) <= MAX_TOKENS:
        return kernels.few(x.contiguous(), tensors, rows, columns)
    step = max(BLOCK_ROWS, SCRATCH_BYTES // (2 * columns) // BLOCK_ROWS * BLOCK_ROWS)
    out = x.new_empty((len(x), rows))
    scratch = x.new_empty((min(step, rows), columns))
    for start in range(0, rows, step):
        wanted = range(start, min(start + step, rows))
        block = kernels.decode(tensors, rows, columns, wanted, scratch[: len(wanted)])
        out[:, start : wanted.stop] = x @ block.t()
    return out


@_linear.register_fake
def _linear_shape(x: Tensor, tensors: Sequence[Tensor], rows: int, columns: int, layout: str) -> Tensor:
    del tensors, columns, layout
    return x.new_empty((x.shape[0], rows))


@torch.library.custom_op("specpilot::weight12_rows", mutates_args=())
def _rows(ids: Tensor, tensors: Sequence[Tensor], rows: int, columns: int, layout: str) -> Tensor:
    out = torch.empty((len(ids), columns), dtype=torch.bfloat16, device=ids.device)
    return _kernels(layout, ids.device).decode(tensors, rows, columns, ids, out) if len(ids) else out


@_rows.register_fake
def _rows_shape(ids: Tensor, tensors: Sequence[Tensor], rows: int, columns: int, layout: str) -> Tensor:
    del tensors, rows, layout
    return ids.new_empty((ids.shape[0], columns), dtype=torch.bfloat16)


def _kernels(layout: str, device: torch.device) -> _Kernels:
    if layout == "stream":
        return _Kernels(_stream_linear, _stream_decode)
    if device.type == "cuda":
        return _Kernels(_triton_planes_linear, _triton_planes_decode)
    return _Kernels(_torch_linear, _torch_decode)


def _triton(module: str) -> Any:
    """One of our modules in Triton.

    Raises:
        RuntimeError: Triton is not installed.
    """
    try:
        return importlib.import_module(f"reference_mechanisms.kernels.weight12.{module}")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise RuntimeError("weight12 on a CUDA device needs Triton: pip install triton") from None


def _planes(tensors: Sequence[Tensor], columns: int) -> Planes:
    return planes.from_arrays(dict(zip(SUFFIXES, tensors, strict=False)), columns)


def _torch_linear(x: Tensor, tensors: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    del rows
    return x @ _planes(tensors, columns).decode().t()


def _torch_decode(
    tensors: Sequence[Tensor], rows: int, columns: int, wanted: Tensor | range, out: Tensor
) -> Tensor:
    del rows
    matrix = _planes(tensors, columns)
    found = (
        matrix.decode_rows(wanted.start, wanted.stop) if isinstance(wanted, range) else matrix.gather(wanted)
    )
    return out.copy_(found)


def _triton_planes_linear(x: Tensor, tensors: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    del rows
    out: Tensor = _triton("triton_linear").linear(x, _planes(tensors, columns))
    return out


def _triton_planes_decode(
    tensors: Sequence[Tensor], rows: int, columns: int, wanted: Tensor | range, out: Tensor
) -> Tensor:
    del rows
    slots = tensors[len(SUFFIXES)] if len(tensors) > len(SUFFIXES) else None
    found: Tensor = _triton("triton_decode").decode_planes(_planes(tensors, columns), wanted, slots, out)
    return found


def _arranged(tensors: Sequence[Tensor], rows: int, columns: int) -> Any:
    from reference_mechanisms.kernels.weight12.arrange import Arranged  # noqa: PLC0415 - CUDA only
    from reference_mechanisms.kernels.weight12.schedule import split  # noqa: PLC0415

    units, numbers, palettes, *highs = tensors
    return Arranged(
        rows=rows,
        columns=columns,
        split=split(rows, columns),
        units=units,
        numbers=numbers,
        palettes=palettes,
        highs=highs[0] if highs else None,
    )


def _stream_linear(x: Tensor, tensors: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    from reference_mechanisms.kernels.weight12 import launching  # noqa: PLC0415 - CUDA only

    return launching.linear(x, _arranged(tensors, rows, columns))


def _stream_decode(
    tensors: Sequence[Tensor], rows: int, columns: int, wanted: Tensor | range, out: Tensor
) -> Tensor:
    arranged = _arranged(tensors, rows, columns)
    found: Tensor = _triton("triton_decode").decode_arranged(arranged, wanted, out)
    return found
