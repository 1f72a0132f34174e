"""Weights that the next product reads are brought into L2 while a launch that reads little is under way.

Attention of few rows waits for loads that wait for each other, and leaves the memory idle; the product
behind it then reads from L2 what was fetched. Nothing waits for the fetch, and no result hangs on it.
Source: `cp.async.bulk.prefetch.L2`, PTX ISA; compute capability 9.0 and up.
"""

# ruff: noqa: N803 - Triton's own language
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

MIB = 1 << 20
LINE = 128  # bytes


@triton.jit
def fetch(ahead, count, FETCHES: tl.constexpr):
    """Bring the program's share of the first `count` bytes into L2; a multiple of 128."""
    if FETCHES:
        programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
        plane = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        mine = tl.program_id(2) * tl.num_programs(0) * tl.num_programs(1) + plane
        share = tl.cdiv(tl.cdiv(count, programs), 128) * 128
        start = mine * share
        size = tl.minimum(share, count - start)
        if size > 0:
            tl.inline_asm_elementwise(
                """{
                .reg .pred one;
                .reg .u32 thread;
                mov.u32 thread, %tid.x;
                setp.eq.u32 one, thread, 0;
                @one cp.async.bulk.prefetch.L2.global [$1], $2;
                mov.u32 $0, 0;
                }""",
                "=r,l,r",
                [ahead + start, size],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


def fetched(weights: Tensor | None, mib: int) -> tuple[Tensor | None, int]:
    """The weights that a product reads, and how many bytes from their start are to be fetched."""
    if weights is None or not mib or weights.data_ptr() % 16:
        return None, 0
    count = min(weights.nbytes, mib * MIB) // LINE * LINE
    return (weights, count) if count else (None, 0)
