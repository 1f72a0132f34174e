"""What an arm says of two-level verification, checked, and what it may be combined with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from reference_mechanisms.engine.cache import Window
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.verification.two_level.holding import Holding
from reference_mechanisms.verification.two_level.level_one import LevelName, LevelOne

PolicyName = Literal["hold", "stage", "recheck"]
Recheck = Literal["all", "near-ties"]
FIELDS = (
    "two_level",
    "level_one",
    "level_one_layers",
    "level_one_sinks",
    "level_one_recent",
    "rounds",
    "held",
    "held_confidence",
    "gain_figures",
    "stage_first",
    "recheck",
    "recheck_margin",
)
OF_HOLD = ("rounds", "held", "held_confidence", "gain_figures")
OF_LEVEL: Mapping[str, tuple[str, ...]] = {
    "early-exit": ("level_one_layers",),
    "window": ("level_one_sinks", "level_one_recent"),
}
SAME_FUNCTION: tuple[LevelName, ...] = ("bf16", "wy")  # levels whose near ties mean something
MAX_HELD = 64
MAX_ROUNDS = 16
MAX_POSITIONS = 1 << 20

Name = TypeVar("Name", bound=str)


class TwoLevelError(MechanismError):
    """A parameter of two-level verification is unknown, missing, out of range or does not go together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevelSettings:
    """A policy with its parameters."""

    policy: PolicyName
    level_one: LevelOne | None = None  # None: the target itself, of the policy `stage`
    holding: Holding | None = None  # of `hold`, and of `recheck` = "all"
    gain_figures: Path | None = None  # of `hold`: measured figures that choose the rounds, 0 of them too
    stage_first: int = 0  # of `stage`: tokens, or nodes, of the first pass
    margin: float = 0.0  # of `recheck`: logits

    @property
    def trusts_level_one(self) -> bool:
        """Whether a token can be emitted that the target did not choose."""
        return self.policy == "recheck" and self.holding is None

    def rows(self, plain: int) -> int:
        """Rows of the target's step, at most; without two levels it had `plain`."""
        if self.holding is not None:
            return 1 + self.holding.tokens
        return 1 + self.stage_first if self.policy == "stage" else plain

    @property
    def about(self) -> str:
        """One phrase for the report."""
        if self.level_one is None:
            return f"staged, {self.stage_first} tokens first"
        level, held = self.level_one.about, self.holding
        if held is None:
            return (
                f"level one ({level}) decides where its best logit is {self.margin:g} ahead, the target near "
                f"ties only"
            )
        until = f", until a choice is closer than {held.margin:g}" if held.margin else ""
        return (
            f"level one ({level}) holds up to {held.tokens} tokens of {held.rounds} rounds{until}; the "
            f"target verifies all of them"
        )


def parse_two_level(params: Mapping[str, object], *, tree: bool, sampled: bool) -> TwoLevelSettings | None:
    """The two-level part of an arm's parameters; None if it has none.

    Args:
        params: all of them.
        tree: the arm's drafts are trees.
        sampled: its drafts are drawn.

    Raises:
        TwoLevelError: naming the parameter and how to mend it.
    """
    given = [field for field in FIELDS if field in params]
    if not given:
        return None
    if "two_level" not in params:
        raise TwoLevelError(f"`{given[0]}` is given without `two_level`: {', '.join(get_args(PolicyName))}")
    policies: tuple[PolicyName, ...] = get_args(PolicyName)
    policy = _one_of(params, "two_level", policies)
    if sampled:
        raise TwoLevelError(
            "`two_level` does not go with `draft_sample_method` = 'probabilistic': the target compares what "
            "comes through with its own draws, so drawn drafts would only be rejected more often"
        )
    if policy == "stage":
        _only(params, given, "stage", ("stage_first",))
        return TwoLevelSettings(policy="stage", stage_first=_count(params, "stage_first", None, MAX_HELD))
    level = _level(params)
    of_level = ("level_one", *OF_LEVEL.get(level.name, ()))
    if policy == "hold":
        _only(params, given, "hold", (*of_level, *OF_HOLD))
        if level.name in SAME_FUNCTION:
            raise TwoLevelError(
                f"`level_one` = {level.name!r} is the same function in other arithmetic, for `two_level` = "
                f"'recheck'"
            )
        return _hold(params, level)
    _only(params, given, "recheck", (*of_level, "recheck", "recheck_margin", "held"))
    return _recheck(params, level, tree=tree)


def _hold(params: Mapping[str, object], level: LevelOne) -> TwoLevelSettings:
    figures = params.get("gain_figures")
    if figures is not None:
        if not isinstance(figures, str) or not Path(figures).is_file():
            raise TwoLevelError(f"`gain_figures` must be the file of measured figures, got {figures!r}")
        if "rounds" in params:
            raise TwoLevelError("`rounds` is chosen by `gain_figures`; give one of the two")
    holding = Holding(
        rounds=_count(params, "rounds", 2, MAX_ROUNDS) if figures is None else MAX_ROUNDS,
        tokens=_count(params, "held", 16, MAX_HELD),
        confidence=_number(params, "held_confidence", 0.0, 1.0),
    )
    where = None if figures is None else Path(str(figures))
    return TwoLevelSettings(policy="hold", level_one=level, holding=holding, gain_figures=where)


def _recheck(params: Mapping[str, object], level: LevelOne, *, tree: bool) -> TwoLevelSettings:
    if level.name not in SAME_FUNCTION:
        raise TwoLevelError(
            f"`two_level` = 'recheck' does not go with `level_one` = {level.name!r}: a near tie says "
            f"something only where both levels are the same function; give {' or '.join(SAME_FUNCTION)}, or "
            f"`two_level` = 'hold'"
        )
    grades: tuple[Recheck, ...] = get_args(Recheck)
    grade = _one_of({"recheck": "all"} | dict(params), "recheck", grades)
    if "recheck_margin" not in params:
        raise TwoLevelError("`recheck_margin` is missing: logits below which a choice is close, as measured")
    margin = _number(params, "recheck_margin", 0.0, 1e6)
    if margin <= 0.0:
        raise TwoLevelError("`recheck_margin` must be above 0")
    if grade == "all":
        tokens = _count(params, "held", 16, MAX_HELD)
        holding = Holding(rounds=tokens, tokens=tokens, margin=margin)
        return TwoLevelSettings(policy="recheck", level_one=level, holding=holding, margin=margin)
    if "held" in params:
        raise TwoLevelError("`held` does not go with `recheck` = 'near-ties', which holds nothing back")
    if tree:
        raise TwoLevelError(
            "`tree` does not go with `recheck` = 'near-ties': close choices of nodes off the path would call "
            "the target at nearly every step; give `recheck` = 'all'"
        )
    return TwoLevelSettings(policy="recheck", level_one=level, margin=margin)


def _level(params: Mapping[str, object]) -> LevelOne:
    names: tuple[LevelName, ...] = get_args(LevelName)
    name = _one_of(params, "level_one", names)
    if name == "early-exit":
        return LevelOne(name, layers=_count(params, "level_one_layers", None, 1024))
    if name == "window":
        sinks = _count(params, "level_one_sinks", 4, MAX_POSITIONS)
        return LevelOne(name, window=Window(sinks, _count(params, "level_one_recent", 512, MAX_POSITIONS)))
    return LevelOne(name)


def _only(params: Mapping[str, object], given: list[str], policy: str, allowed: tuple[str, ...]) -> None:
    stranger = next((field for field in given if field not in ("two_level", *allowed)), None)
    if stranger is not None:
        takes = ", ".join(f"`{field}`" for field in allowed)
        level = f", `level_one` {params['level_one']!r}" if "level_one" in params else ""
        raise TwoLevelError(f"`{stranger}` is of no use to `two_level` {policy!r}{level}; it takes {takes}")


def _one_of(params: Mapping[str, object], field: str, names: tuple[Name, ...]) -> Name:
    found = next((name for name in names if name == params.get(field)), None)
    if found is None:
        raise TwoLevelError(f"`{field}` must be one of {', '.join(names)}, got {params.get(field)!r}")
    return found


def _count(params: Mapping[str, object], field: str, default: int | None, most: int) -> int:
    value = params.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise TwoLevelError(f"`{field}` must be an integer in 1..{most}, got {value!r}")
    return value


def _number(params: Mapping[str, object], field: str, default: float, most: float) -> float:
    value = params.get(field, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value < most:
        raise TwoLevelError(f"`{field}` must be a number from 0 to below {most:g}, got {value!r}")
    return float(value)
