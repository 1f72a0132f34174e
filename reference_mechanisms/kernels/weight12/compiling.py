"""Compile the kernels for an architecture with NVRTC, through cuda.core: no nvcc, no headers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from importlib import resources

from reference_mechanisms.kernels.weight12.schedule import EIGHTS, Variant

SOURCES = ("ptx.cuh", "unit.cuh", "tokens.cuh", "stream.cu")
ENTRY = "weight12_stream"
READING_ENTRY = "weight12_read"


def source(without: str | None = None) -> str:
    """The CUDA C++ of the kernels, as one text; one of its files may be left out for another."""
    here = resources.files(__package__)
    return "\n".join(here.joinpath(name).read_text() for name in SOURCES if name != without)


def macros(variant: Variant) -> tuple[tuple[str, int], ...]:
    """What a kernel is compiled with."""
    return (
        ("NT", variant.blocks),
        ("RAW", int(variant.raw)),
        ("EIGHT", 0 if variant.eight is None else EIGHTS.index(variant.eight) + 1),
        ("CLUSTER", variant.cluster),
        ("WK", variant.warps_k),
        ("WARPS", variant.warps),
        ("PIECES", variant.pieces),
        ("BATCH", variant.batch),
        ("DESKS", variant.desks),
        ("BULK", int(variant.way.bulk)),
        ("EARLY", int(variant.way.early)),
        ("FOURS", int(variant.way.fours)),
        ("WGMMA", int(variant.way.wgmma)),
        ("GATED", int(variant.gated)),
    )


def has_wgmma(architecture: str) -> bool:
    """Whether four warps can multiply together there: on Hopper alone."""
    return architecture == "sm_90"


def reading_source() -> str:
    """The CUDA C++ of the kernel that only reads."""
    return resources.files(__package__).joinpath("read.cu").read_text()


@functools.cache
def compile_cubin(variant: Variant, architecture: str) -> bytes:
    """Machine code of one kernel for an architecture such as `sm_90`; errors as in `compile_text`."""
    exact = architecture + "a" * variant.way.wgmma  # wgmma is of this architecture and no later one
    return compile_text(source(), exact, macros(variant))


def compile_text(text: str, architecture: str, defined: Sequence[tuple[str, int]] = ()) -> bytes:
    """Machine code of CUDA C++.

    Args:
        text: the program.
        architecture: such as `sm_90`.
        defined: macros, names and their values.

    Raises:
        ImportError: cuda.core is not installed.
        Exception: of cuda.core, if NVRTC is missing or refuses the source.
    """
    core = importlib.import_module("cuda.core")
    if not hasattr(core, "Program"):
        core = importlib.import_module("cuda.core.experimental")
    values = [(name, str(value)) for name, value in defined]
    options = core.ProgramOptions(
        arch=architecture, std="c++17", device_as_default_execution_space=True, define_macro=values or None
    )
    return bytes(core.Program(text, "c++", options).compile("cubin").code)
