"""Run the text of the streaming kernels on a CPU: compiled by g++, `machine.hpp` in place of `ptx.cuh`."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from reference_mechanisms.kernels.weight12 import compiling
from reference_mechanisms.kernels.weight12.arrange import Arranged
from reference_mechanisms.kernels.weight12.schedule import Variant

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
SHARED = "extern __shared__ __align__(128) u8 smem[];"
CLUSTERS = 3  # at once, fewer than most matrices have passes
COMMAND = (str(COMPILER), "-std=c++20", "-O1", "-fPIC", "-w")


class EmulationError(RuntimeError):
    """The kernel did what it may not do on a GPU."""


def emulated(x: Tensor, weight: Arranged, variant: Variant, seed: int = 0) -> Tensor:
    """X W^T as `launching.linear` gives it, [M, N].

    Args:
        x: [M, K] bf16, its rows may be apart; M fits the variant.
        weight: arranged, on a CPU.
        variant: the kernel.
        seed: of the order in which threads run.

    Raises:
        EmulationError: memory that is not there yet, mail to nobody, threads that wait for each other.
    """
    out = torch.full((len(x), weight.outputs), float("nan"), dtype=torch.bfloat16)
    split = weight.split
    table = weight.palettes if weight.scales is None else weight.scales
    parts = (weight.units, weight.numbers, table, weight.highs)
    addresses = [0 if part is None else part.contiguous().data_ptr() for part in parts]
    found = _library(variant).launch(
        *(ctypes.c_void_p(one) for one in (*addresses, x.data_ptr(), out.data_ptr())),
        *(ctypes.c_int(one) for one in (len(x), weight.rows, weight.columns, split.tiles, split.groups)),
        *(ctypes.c_longlong(one.stride(0)) for one in (x, out)),
        *(ctypes.c_int(one) for one in (min(CLUSTERS, split.groups), variant.shared_bytes, seed)),
    )
    if found:
        raise EmulationError("threads wait for each other" if found < 0 else f"{found} faults")
    return out


@functools.cache
def _library(variant: Variant) -> ctypes.CDLL:
    text = compiling.source(without="ptx.cuh")
    if text.count(SHARED) != 1:
        raise EmulationError("the kernel declares its shared memory in another way")
    text = text.replace(SHARED, "u8* const smem = machine::shared();")
    folder = Path(tempfile.mkdtemp(prefix="weight12-"))
    program = folder / "kernel.cpp"
    program.write_text("\n".join(('#include "machine.hpp"', text, (HERE / "launch.hpp").read_text())))
    defined = [f"-D{name}={value}" for name, value in compiling.macros(variant)]
    library = folder / "kernel.so"
    options = ["-shared", f"-I{_machine()}", *defined]
    subprocess.run([*COMMAND, *options, str(program), "-o", str(library)], check=True)
    found = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    return found


@functools.cache
def _machine() -> Path:
    """A folder with `machine.hpp`, compiled: reading it takes longer than a kernel."""
    folder = Path(tempfile.mkdtemp(prefix="weight12-"))
    atexit.register(shutil.rmtree, folder)
    header = shutil.copy(HERE / "machine.hpp", folder)
    subprocess.run([*COMMAND, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return folder
