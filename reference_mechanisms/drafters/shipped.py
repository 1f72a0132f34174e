"""The drafters that come with this package, each for one target, found by the weights of that target."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from reference_mechanisms.drafters.fields import Fields
from reference_mechanisms.errors import DrafterError, TargetError
from reference_mechanisms.targets.config import read_json

ROOT = Path(__file__).parent / "shipped"  # <target's name>/<drafter>/
TARGET = "specpilot_target"  # field of config.json


class TrainedFor(NamedTuple):
    """The target that a drafter was trained for."""

    name: str
    sha256: str  # of its weights, as the harness computes it

    def declaration(self) -> dict[str, str]:
        """What config.json says of it, under `TARGET`."""
        return {"name": self.name, "sha256": self.sha256}


class Shipped(NamedTuple):
    """A drafter folder of this package."""

    drafter: str
    target: TrainedFor
    folder: Path

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"shipped {self.target.name}/{self.drafter}"


def shipped(root: Path = ROOT) -> tuple[Shipped, ...]:
    """Every shipped drafter, in the order of targets and drafters.

    Raises:
        DrafterError: a folder does not say what it was trained for.
    """
    return tuple(
        Shipped(config.parent.name, trained_for(config), config.parent)
        for config in sorted(root.glob("*/*/config.json"))
    )


def trained_for(config: Path) -> TrainedFor:
    """The target that a drafter's config.json names.

    Raises:
        DrafterError: it names none.
    """
    try:
        fields = Fields(read_json(config), str(config)).inside(TARGET)
    except TargetError as error:
        raise DrafterError(str(error)) from None
    return TrainedFor(fields.text("name"), fields.text("sha256"))


def find(drafter: str, sha256: str | None, root: Path = ROOT) -> Shipped:
    """The shipped drafter of a target.

    Args:
        drafter: "dflash", "dflash2", "dspark" or "eagle3".
        sha256: of the target's weights; None where they are not known.
        root: of the shipped drafters.

    Raises:
        DrafterError: none is shipped for it.
    """
    every = shipped(root)
    known = [one for one in every if one.drafter == drafter]
    fitting = [one for one in known if one.target.sha256 == sha256]
    if fitting:
        return fitting[0]
    if known:
        names = ", ".join(f"{one.target.name} ({one.target.sha256[:12]})" for one in known)
        raise DrafterError(
            f"the shipped {drafter} was trained for {names}, this target's weights have sha256 "
            f"{(sha256 or 'unknown')[:12]}; give `checkpoint`, the folder of a drafter for it"
        )
    others = ", ".join(one.name for one in every) or "no drafter at all"
    raise DrafterError(
        f"no {drafter} comes with this package (it has {others}); give `checkpoint`, the folder of one"
    )
