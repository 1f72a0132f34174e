"""Launch the kernels on torch tensors: y = x W^T, captured by CUDA graphs like any torch operation.

Launches overlap: a kernel begins to load its weights while the one before it still runs, and waits for
it before it reads x. Weights must therefore be complete before the first launch: `arrange`, then
synchronise the device.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged
from reference_mechanisms.kernels.weight12.compiling import ENTRY, compile_cubin, has_wgmma
from reference_mechanisms.kernels.weight12.driver import architecture, attribute, check, driver, grid, load
from reference_mechanisms.kernels.weight12.schedule import (
    CHOICE,
    MAX_TOKENS,
    Choice,
    Split,
    Variant,
    settled,
    variant,
)

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_TYPES = (_POINTER,) * 6 + (_INT,) * 5 + (_LONG,) * 2


def linear(x: Tensor, weight: Arranged, out: Tensor | None = None, choice: Choice = CHOICE) -> Tensor:
    """X W^T, rounded to bf16 once; of a gated weight the SiLU of the gate's rows times the others.

    Args:
        x: [M, K] bf16 on the weight's device, 1 <= M <= 64; its rows may be apart.
        weight: arranged, and complete (see above).
        out: [M, N], gated [M, N / 2], bf16 to write, its rows may be apart; allocated if None.
        choice: of kernels; where the device has no wgmma, those that ask for it do without.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    out = _checked(x, weight, out)
    wgmma = has_wgmma(_architecture(x.device.index))
    split, ways = settled(weight.split, weight.rows, weight.columns, choice, wgmma=wgmma)
    step = 8 * _variant(weight, split, len(x), ways).blocks
    for start in range(0, len(x), step):
        part = x[start : start + step]
        _launch(part, weight, split, out[start : start + step], _variant(weight, split, len(part), ways))
    return out


def _checked(x: Tensor, weight: Arranged, out: Tensor | None) -> Tensor:
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != weight.columns or x.stride(1) != 1:
        raise ValueError(
            f"x is {x.dtype} {list(x.shape)}, not bf16 [M, {weight.columns}] with contiguous rows"
        )
    if not 1 <= len(x) <= MAX_TOKENS:
        raise ValueError(f"{len(x)} tokens; the kernels take 1 to {MAX_TOKENS}")
    if x.device != weight.units.device or not x.is_cuda:
        raise ValueError(f"x is on {x.device}, the weight on {weight.units.device}")
    columns = weight.outputs
    if out is None:
        return x.new_empty((len(x), columns))
    if out.dtype != x.dtype or out.shape != (len(x), columns) or out.stride(1) != 1 or out.device != x.device:
        raise ValueError(f"out is {out.dtype} {list(out.shape)}, not bf16 {[len(x), columns]}")
    return out


def _variant(weight: Arranged, split: Split, tokens: int, choice: Choice) -> Variant:
    room = _room(weight.units.device.index)
    return variant(
        split,
        tokens,
        raw=weight.raw,
        room=room,
        choice=choice,
        gated=weight.gated,
        eight=weight.eight,
    )


def _launch(x: Tensor, weight: Arranged, split: Split, out: Tensor, found: Variant) -> None:
    function, clusters = _function(found, x.device.index)
    dependent = driver().CUlaunchAttribute()
    dependent.id = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    dependent.value.programmaticStreamSerializationAllowed = 1
    config = _grid(found, min(clusters, split.groups), found.shared_bytes, dependent)
    values = (
        weight.units.data_ptr(),
        _address(weight.numbers),
        _address(weight.palettes if weight.scales is None else weight.scales),
        _address(weight.highs),
        x.data_ptr(),
        out.data_ptr(),
        len(x),
        weight.rows,
        weight.columns,
        split.tiles,
        split.groups,
        x.stride(0),
        out.stride(0),
    )
    check(driver().cuLaunchKernelEx(config, function, (values, _TYPES), 0))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _grid(found: Variant, clusters: int, shared_bytes: int, *more: Any) -> Any:
    config = grid(clusters * found.cluster, 32 * found.warps, shared_bytes)
    shape = driver().CUlaunchAttribute()
    shape.id = driver().CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    shape.value.clusterDim.x, shape.value.clusterDim.y, shape.value.clusterDim.z = found.cluster, 1, 1
    config.attrs = [shape, *more]
    config.numAttrs = 1 + len(more)
    return config


@functools.cache
def _architecture(device: int) -> str:
    return architecture(device)


@functools.cache
def _room(device: int) -> int:
    """Bytes of shared memory that a CTA may have."""
    return attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device)


@functools.cache
def _function(found: Variant, device: int) -> tuple[Any, int]:
    """The loaded kernel, and how many of its clusters the device holds at once, a CTA a multiprocessor."""
    room = _room(device)
    function = load(compile_cubin(found, _architecture(device)), ENTRY, device, room)
    clusters = int(check(driver().cuOccupancyMaxActiveClusters(function, _grid(found, 1, room))))
    return function, max(1, clusters)
