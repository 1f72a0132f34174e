"""Landlock and a seccomp filter on this process, then the program. A script; standard library only.

`python -I -S confine.py ORDER PROGRAM ARGUMENT...`, inside new user, pid, ipc and network namespaces;
ORDER is JSON with `readable`, `writable`, `environment` and `cwd`. Landlock closes the file system and
TCP, and puts processes outside beyond ptrace and signals. It does not close UNIX sockets that lie in the
file system, so the filter refuses every socket of that family, and io_uring, which could open one.

Sources: landlock(7), seccomp(2) of the Linux manual pages; kernel user-space API of Landlock ABI 1 to 7.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import stat
import struct
import sys

CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # the same numbers on every architecture
ASK_VERSION = 1
RULE_PATH = 1
NO_NEW_PRIVS, SECCOMP, SECCOMP_FILTER = 38, 22, 2
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that a rule on a file may give
FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # number of rights, by ABI; 16 from ABI 5
NET_TCP, SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
FEWEST_ABI = 4  # TCP
SOCKET_CALL = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # audit name, number of socket
IO_URING_SETUP = 425
AF_UNIX = 1

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Version of Landlock here; 0 if there is none."""
    found = int(_libc.syscall(CREATE, None, 0, ASK_VERSION))
    return max(0, found)


def restrict(readable: list[str], writable: list[str]) -> None:
    """Close the file system but for these paths, and TCP, for this process and all it starts.

    Raises:
        OSError: the kernel cannot do it.
    """
    version = abi()
    if version < FEWEST_ABI:
        raise OSError(errno.ENOSYS, f"Landlock ABI {version} is older than {FEWEST_ABI}")
    rights = (1 << FS_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", rights, NET_TCP, SCOPES if version >= 6 else 0)
    size = len(attributes) if version >= 6 else 16
    rules = _checked(_libc.syscall(CREATE, attributes, size, 0))
    for paths, allowed in ((readable, READ), (writable, rights)):
        for path in paths:
            _allow(rules, path, allowed & rights)
    _checked(_libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.syscall(RESTRICT, rules, 0))
    os.close(rules)


def refuse_sockets() -> None:
    """Let no UNIX socket be made any more, nor an io_uring.

    Raises:
        OSError: the architecture is unknown, or the kernel refuses.
    """
    if platform.machine() not in SOCKET_CALL:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")
    audit, socket_call = SOCKET_CALL[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
    program = [
        (load, 0, 0, 4),  # architecture
        (equal, 1, 0, audit),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # number of the call
        (equal, 3, 0, IO_URING_SETUP),
        (equal, 0, 3, socket_call),
        (load, 0, 0, 16),  # first argument, low half: the family
        (equal, 0, 1, AF_UNIX),
        (give, 0, 0, refuse),
        (give, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.prctl(SECCOMP, SECCOMP_FILTER, filter_, 0, 0))


def main(arguments: list[str]) -> int:
    """Confine, then become the program; 125 if that fails, and nothing was started."""
    order = json.loads(arguments[0])
    try:
        os.chdir(order["cwd"])
        restrict(order["readable"], order["writable"])
        refuse_sockets()
        os.execvpe(arguments[1], arguments[1:], order["environment"])  # noqa: S606 - that is the point
    except OSError as error:
        print(f"sandbox: {error}", file=sys.stderr)
    return 125


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= OF_FILES
        _checked(_libc.syscall(ADD_RULE, rules, RULE_PATH, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
