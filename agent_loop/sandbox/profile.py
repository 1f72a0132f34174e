"""What a program in the sandbox may have: folders, devices, limits, environment. Pure records.

There is no field for the network, for there is none; a program that must speak to the outside gets a
UNIX socket in a folder it can write.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from harness.codec import Record
from harness.errors import UsageError

NOBODY = 65534  # uid and gid inside
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "passwd", "group")
GPU_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class Limits(Record, frozen=True):
    """What a program may use; the wall clock ends it with all that it started."""

    seconds: float | None = 600.0  # wall clock; None where the caller ends the program itself
    cpu_seconds: int | None = None  # of each process
    memory_bytes: int | None = 8 << 30  # of all processes together, where a cgroup can be made
    processes: int | None = 512  # and threads
    file_bytes: int | None = 1 << 30  # of one file
    open_files: int | None = 4096
    output_bytes: int = 1 << 20  # of standard output and of standard error, each; the rest is dropped

    def __post_init__(self) -> None:
        """Refuse limits that allow nothing."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"`{field}` must be a positive number, or be left out")


class Profile(Record, frozen=True):
    """A room. Paths inside are those outside; what is not named does not exist there."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()  # folders
    environment: dict[str, str] = {}  # all of it; nothing is inherited
    gpus: tuple[int, ...] = ()  # indices of /dev/nvidia<N>
    cwd: str = "/tmp"  # noqa: S108 - a tmpfs of its own
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        """Refuse paths whose meaning depends on where one stands."""
        for path in (*self.readable, *self.writable, self.cwd):
            if not path.startswith("/") or ".." in Path(path).parts:
                raise ValueError(f"{path!r} must be an absolute path without '..'")
        if "/" in self.writable or "/" in self.readable:
            raise ValueError("the root folder cannot be opened to a sandbox; name folders below it")


def gpu_nodes(gpus: Iterable[int]) -> tuple[str, ...]:
    """Device nodes of the GPUs named, and the control nodes CUDA needs.

    Raises:
        UsageError: a GPU is not there.
    """
    chosen = [f"/dev/nvidia{index}" for index in gpus]
    missing = [node for node in chosen if not Path(node).exists()]
    if missing:
        raise UsageError(
            f"sandbox: no {missing[0]} on this machine; leave the GPU out, or name one of its own"
        )
    control = [f"/dev/{name}" for name in GPU_NODES if Path(f"/dev/{name}").exists()]
    return (*chosen, *control) if chosen else ()


def interpreter_paths() -> tuple[str, ...]:
    """What this Python needs to run at all: its prefixes, outside of the system's folders."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parent.parent)}
    return tuple(sorted(path for path in found if not within(path, SYSTEM)))


def existing(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are there, each once, parents before children."""
    return tuple(sorted({path for path in paths if os.path.lexists(path)}))


def within(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of the roots or lies below one."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
