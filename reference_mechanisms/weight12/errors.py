"""What can go wrong with packed weights; `harness/cli.py` turns each into the harness's own error."""

from __future__ import annotations

from reference_mechanisms.errors import MechanismError


class CallError(MechanismError):
    """The call itself is wrong: the message says what to give instead."""


class WeightError(MechanismError):
    """Weights cannot be read, packed or written: the message names the file or tensor and the mend."""


class CorruptError(WeightError):
    """A weight file is not what was written: the message names the file, the tensor and the reason."""
