"""Points of search spaces, drawn by Optuna: deterministic for a seed and for what is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent_loop.protocols import Space
from agent_loop.records import Candidate, Told
from harness.errors import ModelError
from harness.plan import Param

if TYPE_CHECKING:
    import optuna

STARTUP = 6  # trials at random before the sampler follows what it has seen
FAILED = -1.0  # log speedup that a candidate without a gain to speak of is told as
SPACE = "space"
REPEATS = 40  # proposals in a row that were known already: the spaces are searched
Found = dict[str, tuple[Candidate, Told]]


class Point(NamedTuple):
    """One value for every knob of a space."""

    space: Space
    values: Mapping[str, Param]


def search(
    spaces: Sequence[Space],
    make: Callable[[Point], Candidate],
    attempt: Callable[[Sequence[Candidate]], None],
    found: Found,
    batch: int,
    seed: int,
) -> None:
    """Have points tried in batches until nothing new comes.

    Args:
        spaces: to draw from.
        make: the candidate of a point.
        attempt: has candidates tried and puts them into `found`; its errors end the search.
        found: what was tried, also before.
        batch: candidates of an attempt.
        seed: of the sampler.

    Raises:
        ModelError: Optuna is not installed.
    """
    by_name = {space.mechanism: space for space in spaces}
    if not by_name:
        return
    study = _study(seed)
    repeats = 0
    while repeats < REPEATS:
        asked: list[tuple[optuna.trial.Trial, Candidate]] = []
        while len({one.id for _, one in asked}) < batch and repeats < REPEATS:
            trial = study.ask()
            candidate = make(_drawn(trial, by_name))
            if candidate.id in found:
                study.tell(trial, value(found[candidate.id][1]))
                repeats += 1
                continue
            repeats = repeats + 1 if candidate.id in {one.id for _, one in asked} else 0
            asked.append((trial, candidate))
        if not asked:
            return
        attempt(list({one.id: one for _, one in asked}.values()))
        for trial, one in asked:
            study.tell(trial, value(found[one.id][1]))


def params_of(point: Point) -> dict[str, Param]:
    """Parameters of the arm at a point."""
    return point.space.fixed | {knob.name: point.values[knob.name] for knob in point.space.knobs}


def point_of(space: Space, backend: str, params: Mapping[str, Param]) -> Point | None:
    """Where an arm lies in a space, its source unchanged; None where it does not."""
    knobs = {knob.name: knob for knob in space.knobs}
    if backend != space.backend or params.keys() != {*space.fixed, *knobs}:
        return None
    if any(params[name] != value for name, value in space.fixed.items() if name not in knobs):
        return None
    if any(params[name] not in knob.values for name, knob in knobs.items()):
        return None
    unchanged = {edit.name: edit.values[0] for edit in space.edits}
    return Point(space, {**{name: params[name] for name in knobs}, **unchanged})


def crossed(first: Point, second: Point) -> Iterator[Point]:
    """The first with one value of the second's, knob by knob; nothing where they are of different spaces."""
    if first.space.mechanism != second.space.mechanism:
        return
    for name in sorted(first.values):
        if first.values[name] != second.values[name]:
            yield Point(first.space, {**first.values, name: second.values[name]})


def value(told: Told) -> float:
    """What the sampler maximises: the log speedup, where the candidate is lossless."""
    if told.effect is None or told.outcome not in ("PASSED", "ACCEPT", "NO_GAIN", "INCONCLUSIVE"):
        return FAILED
    return max(FAILED, math.log(told.effect.point))


def _drawn(trial: optuna.trial.Trial, spaces: Mapping[str, Space]) -> Point:
    name = str(trial.suggest_categorical(SPACE, sorted(spaces)))
    space = spaces[name]
    choices = {one.name: one.values for one in space.knobs} | {one.name: one.values for one in space.edits}
    values = {}
    for knob, known in choices.items():
        values[knob] = known[trial.suggest_int(f"{name}/{knob}", 0, len(known) - 1)]
    return Point(space, values)


def _study(seed: int) -> optuna.study.Study:
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError:
        raise ModelError("the offline explorer needs Optuna; install specpilot-harness[loop]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    return optuna.create_study(direction="maximize", sampler=sampler)
