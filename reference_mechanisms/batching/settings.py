"""What an arm says of batching: parameter names, ranges, and which of them go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reference_mechanisms.errors import MechanismError

FIELDS = (
    "batch_slots",
    "batch_ragged",
    "batch_budget",
    "batch_adaptive",
    "batch_tree_budget",
    "batch_cohorts",
    "batch_prefill_rows",
    "batch_buckets",
    "step_costs",
)
NEED_COSTS = ("batch_budget", "batch_adaptive", "batch_tree_budget")
MAX_SLOTS = 512


class BatchingError(MechanismError):
    """A parameter of batching is out of range, or does not go with another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Mechanisms that are on; the defaults are those that need no measured costs."""

    slots: int = 8  # requests that decode at a time
    ragged: bool = True  # each goes on by what it accepted; else by what the slowest did
    budget: bool = False  # drafts to verify shared by survival
    adaptive: bool = False  # draft length by load, 0 among the lengths
    tree_budget: bool = False  # nodes of trees shared by path probability
    cohorts: bool = False  # two, drafting beside verifying
    prefill_rows: int | None = 256  # prompt rows of a step while others decode; None: whole prompts
    buckets: bool = False  # steps of fixed shape, recorded: those of the table, or `costs.bucket_shapes`
    costs: Path | None = None  # file of the measured table

    @property
    def on(self) -> tuple[str, ...]:
        """Names of the mechanisms that are on."""
        chunked = self.prefill_rows is not None
        found = dataclasses.asdict(self) | {"chunked_prefill": chunked}
        names = ("ragged", "budget", "adaptive", "tree_budget", "cohorts", "chunked_prefill", "buckets")
        return tuple(name for name in names if found[name])


def parse_batching(params: Mapping[str, object], *, tree: bool, hosted: bool) -> BatchSettings | None:
    """What an arm says of batching.

    Args:
        params: of the arm.
        tree: whether it verifies trees.
        hosted: whether something else already chooses how many drafts are verified.

    Returns:
        None: nothing is said of it, and the arm decodes batches as they come.

    Raises:
        BatchingError: naming the parameter.
    """
    given = [field for field in FIELDS if field in params]
    if not given:
        return None
    costs = params.get("step_costs")
    if "step_costs" in params and (not isinstance(costs, str) or not Path(costs).is_file()):
        raise BatchingError(f"`step_costs` must be the file of a measured table, got {costs!r}")
    found = BatchSettings(
        slots=_count(params, "batch_slots", 8, MAX_SLOTS),
        ragged=_switch(params, "batch_ragged", default=True),
        budget=_switch(params, "batch_budget"),
        adaptive=_switch(params, "batch_adaptive"),
        tree_budget=_switch(params, "batch_tree_budget"),
        cohorts=_switch(params, "batch_cohorts"),
        prefill_rows=_count(params, "batch_prefill_rows", 256, 1 << 20, zero=True) or None,
        buckets=_switch(params, "batch_buckets"),
        costs=Path(costs) if isinstance(costs, str) else None,
    )
    for field in NEED_COSTS:
        if params.get(field) is True and found.costs is None:
            raise BatchingError(
                f"`{field}` needs measured costs: without them every row looks free. Give `step_costs`"
            )
    refuse_combinations(found, tree=tree, hosted=hosted)
    return found


def refuse_combinations(settings: BatchSettings, *, tree: bool, hosted: bool) -> None:
    """Hold that mechanisms go together.

    Args:
        settings: of batching.
        tree: whether the arm verifies trees.
        hosted: whether something else chooses how many drafts are verified.

    Raises:
        BatchingError: naming both.
    """
    if settings.tree_budget and not tree:
        raise BatchingError("`batch_tree_budget` shares the nodes of a `tree`; give its number of nodes")
    if settings.budget and tree:
        raise BatchingError("`batch_budget` shares chains; for a `tree` give `batch_tree_budget`")
    if tree and not settings.ragged:
        raise BatchingError("`batch_ragged` = false cuts chains; it does not go with `tree`")
    if hosted and (settings.budget or settings.tree_budget):
        raise BatchingError(
            "`batch_budget` and `batch_tree_budget` do not go with `min_confidence` or `tree_budget`: both "
            "would choose how many drafts are verified"
        )
    if settings.cohorts and settings.slots < 2:
        raise BatchingError("`batch_cohorts` needs at least 2 `batch_slots`")
    if settings.cohorts and not settings.ragged:
        raise BatchingError(
            "`batch_cohorts` does not go with `batch_ragged` = false: cohorts are not in step"
        )


def _switch(params: Mapping[str, object], field: str, *, default: bool = False) -> bool:
    value = params.get(field, default)
    if not isinstance(value, bool):
        raise BatchingError(f"`{field}` must be true or false, got {value!r}")
    return value


def _count(params: Mapping[str, object], field: str, default: int, most: int, *, zero: bool = False) -> int:
    value, least = params.get(field, default), 0 if zero else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BatchingError(f"`{field}` must be an integer in {least}..{most}, got {value!r}")
    return value
