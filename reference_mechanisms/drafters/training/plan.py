"""A training plan: which drafters, on what text, for how long. One TOML file.

Every field has the meaning of the record it fills; unknown ones are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from reference_mechanisms.errors import DrafterError
from reference_mechanisms.tomlfile import read_toml


class DrafterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One drafter to train."""

    name: str  # of its folder
    kind: Literal["dflash", "dflash2", "dspark", "eagle3"]
    layers: int
    taps: tuple[int, ...]  # outputs of the target's layers, counted from 0
    inner: int  # of its MLP
    rank: int = 32  # of DSpark's Markov head or DFlash 2's selector
    markov: Literal["vanilla", "gated", "rnn"] = "vanilla"
    candidates: int = 16  # of DFlash 2's selector
    kernel: int = 2  # of DFlash 2's convolutions
    group: int = 16  # channels that share one of their corrections
    begin_with: tuple[int, ...] = ()  # layers of the target it starts as; none: noise
    learning_rate: float = 1e-3
    muon_rate: float | None = None
    soft_share: float = (
        0.0  # of the target's distribution in what is aimed at; the written token has the rest
    )
    bits: dict[str, int] = {}  # of stored weights, by pattern of their names; else 8


class TextSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the target writes for training."""

    new_tokens: int = 320
    turn_tokens: int = 128
    prompt_tokens: int = 512
    code_turns: int = 0
    chat_turns: int = 0
    stubs: int = 0
    columns: int = 3_000_000
    copies: dict[str, tuple[float, ...]] = {}  # beginning of a source's name -> temperature of each answer


class ScheduleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long, in what batches."""

    steps: int
    sequences: int = 32
    anchors: int = 64
    longest: int = 704
    warmup: float = 0.04
    gamma: float = 4.0
    points: int = 40  # of a curve
    measures: int = 4  # times that acceptance is measured on the way
    measured: int = 60  # texts at those times


class TrainingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole."""

    name: str
    seed: int
    drafts: int
    mask_token: int  # a token that the target never writes; its embedding fills blocks
    licence: str = "not stated"  # of the target, so of what it wrote and of drafters made from it
    text: TextSpec
    schedule: ScheduleSpec
    drafter: tuple[DrafterSpec, ...]


def load_plan(path: Path) -> TrainingPlan:
    """Read a plan.

    Raises:
        DrafterError: naming the file and the field.
    """
    plan = read_toml(path, TrainingPlan, DrafterError, "`reference_mechanisms/drafters/training/README.md`")
    for field, value in _counts(plan).items():
        if value < 1:
            raise DrafterError(f"{path}: `{field}` must be at least 1, got {value}")
    for one in plan.drafter:
        if not 0 <= one.soft_share <= 1:
            field = f"drafter.{one.name}.soft_share"
            raise DrafterError(f"{path}: `{field}` is a share from 0 to 1, got {one.soft_share}")
    names = [one.name for one in plan.drafter]
    if not names or len(set(names)) != len(names) or any(Path(name).name != name for name in names):
        raise DrafterError(f"{path}: every [[drafter]] needs a plain `name` of its own, got {names}")
    return plan


def _counts(plan: TrainingPlan) -> dict[str, int]:
    schedule = plan.schedule
    found = {
        "drafts": plan.drafts,
        "text.new_tokens": plan.text.new_tokens,
        "text.columns": plan.text.columns,
    }
    for field in ("steps", "sequences", "anchors", "longest", "points", "measured"):
        found[f"schedule.{field}"] = getattr(schedule, field)
    for one in plan.drafter:
        found |= {f"drafter.{one.name}.{field}": getattr(one, field) for field in ("layers", "inner", "rank")}
        found[f"drafter.{one.name}.taps"] = len(one.taps)
    return found
