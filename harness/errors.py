"""The errors a user can meet, each with the exit code the command line ends with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_VIOLATED = 1
EXIT_INVALID = 2
EXIT_USAGE = 3


class HarnessError(Exception):
    """Something a user can mend. The message names the field or file and the mend."""

    exit_code = EXIT_INVALID


class UsageError(HarnessError):
    """The request itself is wrong: a typo in a plan, an unknown set, an unknown arm."""

    exit_code = EXIT_USAGE


class DataError(HarnessError):
    """A data file is not the one that was pinned, or is not well formed."""


class ModelError(HarnessError):
    """A target or drafter folder cannot be used as described."""


class InvalidRun(HarnessError):
    """A run cannot give a number that means anything; the message says why."""


class BackendError(HarnessError):
    """A backend failed on a request. The measurer counts it, in every arm alike."""


class UndefinedMetric(HarnessError):
    """A metric has no value on this data (nothing drafted, no step, no prompt)."""
