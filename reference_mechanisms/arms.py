"""What an arm of the reference engine may say of itself: parameter names, ranges, drafters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from reference_mechanisms.drafters.calibration import NoDrafter, NullDrafter, Recorded, ReplayDrafter
from reference_mechanisms.drafters.ngram import NgramDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.errors import MechanismError

DrafterName = Literal["none", "ngram", "null", "replay"]
RECORDING: tuple[DrafterName, ...] = ("null", "replay")  # need the target's own continuation
MAX_DRAFTS = 32


class ParameterError(MechanismError):
    """A parameter of an arm is unknown or out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSettings:
    """A mechanism with its parameters, checked."""

    drafter: DrafterName
    drafts: int  # draft tokens a step, at most
    ngram_min: int = 2
    ngram_max: int = 4

    @property
    def records(self) -> bool:
        """Whether the arm must be prepared with recordings."""
        return self.drafter in RECORDING

    def new_drafter(self, recorded: Recorded, vocab_size: int) -> Drafter:
        """A drafter for one batch."""
        makers: Mapping[DrafterName, Callable[[], Drafter]] = {
            "none": NoDrafter,
            "ngram": lambda: NgramDrafter(self.drafts, self.ngram_min, self.ngram_max),
            "null": lambda: NullDrafter(self.drafts, recorded, vocab_size),
            "replay": lambda: ReplayDrafter(self.drafts, recorded),
        }
        return makers[self.drafter]()


def parse_settings(params: Mapping[str, object]) -> ArmSettings:
    """Check the parameters of an arm.

    Raises:
        ParameterError: naming the parameter.
    """
    known: tuple[DrafterName, ...] = get_args(DrafterName)
    name = next((one for one in known if one == params.get("drafter")), None)
    if name is None:
        raise ParameterError(f"`drafter` must be one of {', '.join(known)}, got {params.get('drafter')!r}")
    allowed = {"none": (), "ngram": ("drafts", "ngram_min", "ngram_max")}.get(name, ("drafts",))
    unknown = sorted(set(params) - {"drafter", *allowed})
    if unknown:
        takes = ", ".join(f"`{field}`" for field in allowed) or "no parameter"
        raise ParameterError(f"`{unknown[0]}` is unknown; drafter {name!r} takes {takes}")
    if name == "none":
        return ArmSettings(drafter="none", drafts=0)
    settings = ArmSettings(
        drafter=name,
        drafts=_count(params, "drafts", 7, MAX_DRAFTS),
        ngram_min=_count(params, "ngram_min", 2, 16),
        ngram_max=_count(params, "ngram_max", 4, 16),
    )
    if settings.ngram_min > settings.ngram_max:
        raise ParameterError(f"`ngram_min` is {settings.ngram_min}, above `ngram_max`, {settings.ngram_max}")
    return settings


def _count(params: Mapping[str, object], field: str, default: int, most: int) -> int:
    value = params.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ParameterError(f"`{field}` must be an integer in 1..{most}, got {value!r}")
    return value
