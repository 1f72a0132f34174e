"""The sandbox from a notebook: a program that is not ours, and what it cannot reach.

    python -m agent_loop.example

Two whole campaigns are `nox -s loop-demo`.
"""

from __future__ import annotations

from agent_loop.sandbox.profile import Limits, Profile, interpreter_paths
from agent_loop.sandbox.room import open_room

CANDIDATE = """
import os, socket
print("user", os.getuid(), "sees", sorted(os.environ))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
except OSError as error:
    print("network:", error.strerror or error)
try:
    open("/etc/shadow")
except OSError as error:
    print("a file outside:", error.strerror)
"""


def main() -> None:
    """Run the program in the strongest room that works here."""
    profile = Profile(readable=interpreter_paths(), limits=Limits(seconds=30.0))
    with open_room(profile) as room:
        done = room.run(["python3", "-I", "-S", "-c", CANDIDATE])
    print(f"mechanism: {room.mechanism}, exit code {done.exit_code}")
    print(done.stdout.decode(errors="replace"), end="")
    print(done.stderr.decode(errors="replace"), end="")


if __name__ == "__main__":
    main()
