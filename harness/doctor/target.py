"""The default target: its package, and the checkpoint that is made of it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from harness.doctor.packages import install_words
from harness.doctor.records import REPRODUCE, Finding

DEPLOYMENT = "smollm2-135m-cpu-f32"  # of the plan reproduce-cpu


def target_findings(root: Path, checkout: bool) -> Iterator[Finding]:
    """Whether the default target is here, as package and as checkpoint, with the pinned weights.

    Args:
        root: folder that holds the packages.
        checkout: whether nox installs the package into an environment of its own.
    """
    try:
        from harness.errors import ModelError  # noqa: PLC0415 - these need packages that may be missing
        from harness.models.folder import read_folder  # noqa: PLC0415
        from harness.models.packaged import (  # noqa: PLC0415
            PACKAGED,
            cached_folder,
            find_gguf,
            install_command,
        )
        from harness.plan import load_deployment  # noqa: PLC0415
    except ImportError as error:
        yield Finding("default target", "target", "lack", f"needs {error.name}", install_words(root))
        return
    spec = load_deployment(DEPLOYMENT).target
    package = str(spec.package)
    known = PACKAGED[package]
    folder = cached_folder(known)
    is_cached = folder.is_dir()
    try:
        gguf = find_gguf(package, known)
    except ModelError:
        yield _package_missing(package, install_command(package, known), is_cached, checkout)
    else:
        size = gguf.stat().st_size
        yield Finding("default target", package, "ok", f"{known.version}, {size / 1e6:.0f} MB of weights")
    if not is_cached:
        said = f"{known.name} is not converted yet; the first run does it in half a minute"
        yield Finding("default target", "checkpoint", "note", said)
        return
    yield checkpoint_finding(folder, spec.sha256, lambda path: read_folder(path, "").sha256, ModelError)


def checkpoint_finding(
    folder: Path, pinned: str | None, weigh: Callable[[Path], str | None], fault: type[Exception]
) -> Finding:
    """Whether the checkpoint in the cache is the pinned one.

    Args:
        folder: of the checkpoint.
        pinned: sha256 of its weights.
        weigh: gives the sha256 of a folder's weights.
        fault: what `weigh` raises where the folder cannot be read.
    """
    mend = f"rm -r '{folder}'"
    try:
        found = weigh(folder)
    except fault as error:
        return Finding("default target", "checkpoint", "lack", str(error), mend, (REPRODUCE,))
    if found != pinned:
        said = f"{folder} is not the pinned one; it is made again by the next run"
        return Finding("default target", "checkpoint", "lack", said, mend, (REPRODUCE,))
    return Finding("default target", "checkpoint", "ok", f"converted, weights {str(found)[:12]} as pinned")


def _package_missing(package: str, install: str, is_cached: bool, checkout: bool) -> Finding:
    if is_cached:
        return Finding("default target", package, "note", "not installed; the checkpoint is in the cache")
    stops = () if checkout else (REPRODUCE,)
    return Finding("default target", package, "lack", "not installed", f"python -m {install}", stops)
