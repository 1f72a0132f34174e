"""What can go wrong in the mechanisms; `backend.py` turns each into the harness's own error."""

from __future__ import annotations


class MechanismError(Exception):
    """Base of the errors that a user of the mechanisms can mend."""


class TargetError(MechanismError):
    """A model folder cannot be used: the message names the file, tensor or field."""


class RequestError(MechanismError):
    """A request cannot be served: the message names it and says why."""


class DrafterError(MechanismError):
    """A drafter folder cannot be used: the message names the file, tensor or field."""
