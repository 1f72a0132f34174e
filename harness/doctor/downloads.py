"""What a fresh environment fetches; bytes of the files that pip takes on Linux x86-64 with Python 3.11.

`uv lock` of this project's dependencies with torch 2.13.0 told the sizes on 2026-12-03: 29 files for torch,
of which it itself is 0.53 GB and NVIDIA's libraries and Triton are the rest.
"""

from __future__ import annotations

TORCH_CUDA = 2_740_808_947  # the default build for Linux x86-64, with the libraries that it wants
TORCH_CPU = 191_794_682  # a build for the CPU alone, which needs none of them
OTHERS = 124_093_226  # every other package of a run
TARGET = 92_871_040  # the package of the default target

DOWNLOADS = {
    "a run, with pip's default torch (CUDA)": TORCH_CUDA + OTHERS + TARGET,
    "a run, with a CPU build of torch": TORCH_CPU + OTHERS + TARGET,
}


def in_gb(size: float) -> str:
    """Bytes as people say them.

    >>> in_gb(2_740_808_947)
    '2.7 GB'
    """
    return f"{size / 1e9:.1f} GB"
