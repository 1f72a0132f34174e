"""Compile the kernels for an architecture with NVRTC, through cuda.core: no nvcc, no headers."""

from __future__ import annotations

import functools
import importlib
from importlib import resources

from reference_mechanisms.kernels.weight12.schedule import Variant

SOURCES = ("ptx.cuh", "unit.cuh", "stream.cu")
ENTRY = "weight12_stream"


def source() -> str:
    """The CUDA C++ of the kernels, as one text."""
    here = resources.files(__package__)
    return "\n".join(here.joinpath(name).read_text() for name in SOURCES)


@functools.cache
def compile_cubin(variant: Variant, architecture: str) -> bytes:
    """Machine code of one kernel.

    Args:
        variant: the kernel.
        architecture: such as `sm_90`.

    Raises:
        ImportError: cuda.core is not installed.
        Exception: of cuda.core, if NVRTC is missing or refuses the source.
    """
    core = importlib.import_module("cuda.core")
    if not hasattr(core, "Program"):
        core = importlib.import_module("cuda.core.experimental")
    macros = {"NT": variant.blocks, "RAW": int(variant.raw), "SLOTS": variant.slots, "CTAS": variant.ctas}
    options = core.ProgramOptions(
        arch=architecture, std="c++17", define_macro=[(name, str(value)) for name, value in macros.items()]
    )
    return bytes(core.Program(source(), "c++", options).compile("cubin").code)
