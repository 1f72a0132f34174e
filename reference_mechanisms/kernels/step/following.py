"""Launches that overlap: a kernel may be brought onto the device while the one before it still runs.

Source: programmatic dependent launch, CUDA programming guide; compute capability 9.0 and up. Every kernel
here lets its follower come at once and waits for its own forerunner to end before it reads or writes
anything. So each starts with memory that is complete, whatever overlaps, and a follower with work that
hangs on no result (the weights of a matrix product) can begin that early.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

OVERLAPPING = 9  # major compute capability


@triton.jit
def precede(PDL: tl.constexpr):  # noqa: N803 - a constant of the kernel
    """Let the next kernel come."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def follow_on(PDL: tl.constexpr):  # noqa: N803 - a constant of the kernel
    """Wait until the kernel before has ended and its results are seen."""
    if PDL:
        gdc_wait()


def how(device: torch.device) -> dict[str, Any]:
    """What a launch on a device takes beside its arguments; the kernel has a constant `PDL`."""
    if device.type != "cuda":
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True} if _overlaps(device.index or 0) else {"PDL": False}


def unfused(device: torch.device) -> dict[str, Any]:
    """As `how`, for sums that two kernels must round alike: a product and a sum stay two operations.

    A compiler may make one of them, which rounds once and not twice, and in one kernel only.
    """
    return how(device) | {"enable_fp_fusion": False}


@functools.cache
def _overlaps(index: int) -> bool:
    return torch.cuda.get_device_capability(index)[0] >= OVERLAPPING
