"""Launch the kernels on torch tensors: y = x W^T, captured by CUDA graphs like any torch operation.

Launches overlap: a kernel begins to load its weights while the one before it still runs, and waits for
it before it reads x. Weights must therefore be complete before the first launch: `arrange`, then
synchronise the device.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12.arrange import Arranged
from reference_mechanisms.kernels.weight12.compiling import ENTRY, compile_cubin
from reference_mechanisms.kernels.weight12.schedule import (
    ADDERS,
    FULL_BYTES,
    MAX_TOKENS,
    SHARED_BYTES,
    WARPS,
    Variant,
    variant,
)

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_TYPES = (_POINTER,) * 5 + (_INT,) * 5 + (_LONG,) * 2 + (_INT,)


def linear(x: Tensor, weight: Arranged, out: Tensor | None = None, *, early: bool = True) -> Tensor:
    """X W^T, rounded to bf16 once.

    Args:
        x: [M, K] bf16 on the weight's device, 1 <= M <= 64; its rows may be apart.
        weight: arranged, and complete (see above).
        out: [M, N] bf16 to write, its rows may be apart; allocated if None.
        early: let the next kernel start at this one's beginning, not at its end.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    out = _checked(x, weight, out)
    found = variant(weight.split, len(x), raw=weight.raw)
    step = 8 * found.blocks
    for start in range(0, len(x), step):
        _launch(x[start : start + step], weight, out[start : start + step], early)
    if weight.raw_rows is not None:
        for start in range(0, len(x), step):
            _launch(x[start : start + step], weight.raw_rows, out[start : start + step], early)
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
    if out is None:
        return x.new_empty((len(x), weight.rows))
    if (
        out.dtype != x.dtype
        or out.shape != (len(x), weight.rows)
        or out.stride(1) != 1
        or out.device != x.device
    ):
        raise ValueError(f"out is {out.dtype} {list(out.shape)}, not bf16 {[len(x), weight.rows]}")
    return out


def _launch(x: Tensor, weight: Arranged, out: Tensor, early: bool) -> None:
    found = variant(weight.split, len(x), raw=weight.raw)
    function, clusters = _function(found, weight.split.cluster, x.device.index)
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX = min(clusters, weight.split.groups) * weight.split.cluster
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX = 32 * (WARPS + ADDERS)
    config.sharedMemBytes = found.shared_bytes
    config.hStream = driver.CUstream(torch.cuda.current_stream(x.device).cuda_stream)
    overlap = driver.CUlaunchAttribute()
    overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    overlap.value.programmaticStreamSerializationAllowed = 1
    config.attrs = [_cluster_attribute(weight.split.cluster), overlap]
    config.numAttrs = 2
    values = (
        weight.units.data_ptr(),
        0 if weight.palettes is None else weight.palettes.data_ptr(),
        x.data_ptr(),
        out.data_ptr(),
        0 if weight.row_of is None else weight.row_of.data_ptr(),
        len(x),
        weight.rows,
        weight.columns,
        weight.split.tiles,
        weight.split.groups,
        x.stride(0),
        out.stride(0),
        int(early),
    )
    _check(driver.cuLaunchKernelEx(config, function, (values, _TYPES), 0))


@functools.cache
def _function(found: Variant, cluster: int, device: int) -> tuple[Any, int]:
    """The loaded kernel, and how many of its clusters the device holds at once."""
    driver = _driver()
    major, minor = torch.cuda.get_device_capability(device)
    torch.cuda.current_stream(device).synchronize()  # the context exists
    module = _check(driver.cuModuleLoadData(compile_cubin(found, f"sm_{major}{minor}")))
    function = _check(driver.cuModuleGetFunction(module, ENTRY.encode()))
    size = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, size, FULL_BYTES))
    config = driver.CUlaunchConfig()
    config.gridDimX = cluster
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX = 32 * (WARPS + ADDERS)
    # One CTA a multiprocessor: the other half is for the kernel that comes next.
    config.sharedMemBytes = max(found.shared_bytes, SHARED_BYTES + 2048)
    config.attrs = [_cluster_attribute(cluster)]
    config.numAttrs = 1
    clusters = int(_check(driver.cuOccupancyMaxActiveClusters(function, config)))
    return function, max(1, clusters)


def _cluster_attribute(cluster: int) -> Any:
    driver = _driver()
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = cluster
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    return attribute


@functools.cache
def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def _check(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        RuntimeError: the driver reports an error.
    """
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"CUDA driver: {error}")
    return values[0] if values else None
