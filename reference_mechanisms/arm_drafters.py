"""The trained drafter of each arm: which folder it lies in, loaded once for all arms that share it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from reference_mechanisms.arms import ArmSettings, ParameterError
from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.detectors import last_layer_tap, untrained_norms
from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.drafters.rounding import round_weights
from reference_mechanisms.drafters.shipped import find
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.kernels.weight12.schedule import Eight


class DrafterFolder(NamedTuple):
    """Of an arm's drafter."""

    name: str  # in reports
    path: Path
    eight: Eight | None = None  # bits that its weights are rounded to; None: as they are stored


@contextlib.contextmanager
def about(arm: str) -> Iterator[None]:
    """Name the arm in what is said of its parameters.

    Raises:
        ParameterError: what the block raised as one, or as a `DrafterError`, with the arm in front.
    """
    try:
        yield
    except (ParameterError, DrafterError) as error:
        raise ParameterError(f"arms[{arm}].params: {error}") from None


def folder_of(arm: str, settings: ArmSettings, target_sha256: str | None, shipped: Path) -> DrafterFolder:
    """The folder given, or the one shipped for this target.

    Args:
        arm: its name.
        settings: of the arm.
        target_sha256: of the target's weights; None where they are not known.
        shipped: folder of the drafters that come with the package.

    Raises:
        ParameterError: none is shipped.
    """
    if settings.checkpoint is not None:
        return DrafterFolder(settings.checkpoint, Path(settings.checkpoint), settings.drafter_weights)
    with about(arm):
        found = find(settings.drafter, target_sha256, shipped)
    return DrafterFolder(found.name, found.folder, settings.drafter_weights)


def load_drafters(folders: Mapping[str, DrafterFolder], target: Target) -> dict[str, Bound]:
    """The drafter of each arm that has one; arms that share a folder, rounded alike, share its weights.

    Raises:
        ParameterError: a folder holds none for this target.
    """
    loaded: dict[tuple[Path, Eight | None], Bound] = {}
    found: dict[str, Bound] = {}
    for arm, folder in folders.items():
        try:
            if folder[1:] not in loaded:
                network = load_drafter(folder.path, target.dtype, target.device)
                if folder.eight is not None:
                    round_weights(network, folder.eight)
                loaded[folder[1:]] = bind(network, target, folder.name)
        except DrafterError as error:
            raise ParameterError(f"arms[{arm}].params: `checkpoint`: {error}") from None
        found[arm] = loaded[folder[1:]]
    return found


def fitted(arm: str, settings: ArmSettings, bound: Bound | None) -> ArmSettings:
    """An arm's settings with what its checkpoint says filled in.

    Raises:
        ParameterError: they ask for what the checkpoint is not or cannot do.
    """
    with about(arm):
        return settings if bound is None else settings.fitted(bound)


def findings(bound: Bound, target: Target) -> list[dict[str, object]]:
    """What detectors say that need nothing but the weights."""
    found = (untrained_norms(bound.network), last_layer_tap(bound.taps, target.config.layers))
    return [one._asdict() for one in found]


def weights_sha256(folder: Path) -> str:
    """Of a drafter's weight files, in the order of their names."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()
