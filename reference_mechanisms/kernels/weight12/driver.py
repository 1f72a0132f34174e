"""The few calls of the CUDA driver that loading and launching take, through cuda.bindings."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


@functools.cache
def driver() -> Any:
    """The module cuda.bindings.driver.

    Raises:
        ImportError: cuda.bindings is not installed; it comes with cuda.core.
    """
    return importlib.import_module("cuda.bindings.driver")


def check(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        RuntimeError: the driver reports an error.
    """
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"CUDA driver: {error}")
    return values[0] if values else None


def attribute(name: str, device: int) -> int:
    """A number of the device, such as `MULTIPROCESSOR_COUNT`."""
    wanted = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver().cuDeviceGetAttribute(wanted, device)))


def architecture(device: int) -> str:
    """Such as `sm_90`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def load(cubin: bytes, entry: str, device: int, shared_bytes: int = 0) -> Any:
    """A kernel of some machine code; it may use `shared_bytes` of shared memory."""
    torch.cuda.current_stream(device).synchronize()  # the context exists
    module = check(driver().cuModuleLoadData(cubin))
    function = check(driver().cuModuleGetFunction(module, entry.encode()))
    most = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver().cuFuncSetAttribute(function, most, shared_bytes))
    return function


def grid(ctas: int, threads: int, shared_bytes: int = 0) -> Any:
    """A launch configuration on torch's current stream."""
    config = driver().CUlaunchConfig()
    config.gridDimX, config.blockDimX, config.sharedMemBytes = ctas, threads, shared_bytes
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.hStream = driver().CUstream(torch.cuda.current_stream().cuda_stream)
    return config
