"""``specpilot-harness loop sandbox``: what keeps a candidate in on this machine, found by trying."""

from __future__ import annotations

import argparse
from typing import TypeVar

from harness.errors import EXIT_INVALID, EXIT_OK

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register(actions: argparse._SubParsersAction[Parser]) -> None:
    """Add the action `sandbox` to the command `loop`."""
    command = actions.add_parser("sandbox", help="tell what keeps a candidate in on this machine")
    command.add_argument(
        "--gpu", type=int, action="append", default=[], metavar="N", help="run CUDA on /dev/nvidia<N> inside"
    )
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from agent_loop.sandbox.probe import probe  # noqa: PLC0415
    from agent_loop.sandbox.room import MEND  # noqa: PLC0415
    from harness.codec import canonical_json  # noqa: PLC0415

    found = probe(tuple(options.gpu))
    if options.json:
        print(canonical_json(found).decode())
    else:
        for one in found:
            if one.why_not is not None:
                print(f"{one.mechanism}: does not work here: {one.why_not}")
                continue
            kept = sorted(set(one.controls) - set(one.escaped))
            print(f"{one.mechanism}: {'closed' if one.closed else 'OPEN'}")
            print(f"  reached outside, kept out inside: {', '.join(kept)}")
            if one.escaped:
                print(f"  reached inside: {one.escaped}")
            print(f"  a process in its own session outlives the limit: {'yes' if one.outlived else 'no'}")
            print(
                f"  limits over all processes together: {', '.join(one.held) or 'none, each process alone'}"
            )
            if one.gpu is not None:
                print(f"  CUDA inside: {one.gpu}")
    best = next((one for one in found if one.closed), None)
    if best is None:
        print(f"no candidate's code can be run here; {MEND}")
        return EXIT_INVALID
    print(f"candidates run in: {best.mechanism}")
    return EXIT_OK
