"""`specpilot-harness doctor`: composes what the packages tell of this machine.

``python -m harness.cli_doctor`` does the same where nothing is installed yet: it needs nothing but Python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from harness.doctor.commands import Others, main, register
from harness.doctor.sources import SetState

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `doctor`."""
    register(commands, others())


def others() -> Others:
    """What the loop tells of its sandbox, and the sealed sets of themselves."""
    return Others(_sandboxes, "apt-get install bubblewrap", _sets)


def _sandboxes() -> Sequence[tuple[str, str | None]]:
    from agent_loop.sandbox.room import MECHANISMS, why_not  # noqa: PLC0415 - needs packages that may be missing

    return [(mechanism, why_not(mechanism)) for mechanism in MECHANISMS]


def _sets(folder: Path | None) -> Sequence[SetState]:
    from sealed_evals.catalogue import load_catalogue  # noqa: PLC0415
    from sealed_evals.survey import survey  # noqa: PLC0415

    found = survey(load_catalogue(), (), folder, hub=False)
    return [SetState(one.name, one.status, one.source, one.message) for one in found]


if __name__ == "__main__":
    sys.exit(main(others()))
