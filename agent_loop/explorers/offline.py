"""Search without a language model: records of the memory, knobs by Optuna, recombination, a null control.

Deterministic for its seed and for what it is told: started anew with the same answers it asks the same
questions. It has the tools of every explorer and no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agent_loop.protocols import BudgetSpent, Desk, Space
from agent_loop.records import Budget, Candidate, Hypothesis, Origin, Told
from harness.errors import ModelError
from harness.plan import Param

if TYPE_CHECKING:
    import optuna

STARTUP = 6  # trials at random before the sampler follows what it has seen
FAILED = -1.0  # log speedup that a candidate without a gain to speak of is told as
SPACE = "space"
REPEATS = 40  # proposals in a row that were known already: the spaces are searched
PARENTS = 2  # recombined


class OfflineExplorer:
    """See `agent_loop.protocols.Explorer`."""

    def __init__(
        self, name: str, *, batch: int = 4, submissions: int = 2, first: Sequence[Candidate] = ()
    ) -> None:
        """Keep the settings.

        Args:
            name: of the explorer.
            batch: candidates of a trial.
            submissions: best candidates that are submitted.
            first: candidates that are tried before anything is searched: a person's, or planted cheats.
        """
        self._name = name
        self._batch = batch
        self._submissions = submissions
        self._first = tuple(first)

    @property
    def name(self) -> str:
        """See `Explorer`."""
        return self._name

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """See `Explorer`."""
        del budget  # the desk counts
        found: dict[str, tuple[Candidate, Told]] = {}
        try:
            self._try(desk, [self._null(desk), *self._recalled(desk), *self._first], found)
            self._search(desk, seed, found)
            self._try(desk, self._merged(desk, found), found)
        except BudgetSpent:
            pass  # what was found is still submitted
        for candidate, _ in self._best(found, desk)[: self._submissions]:
            desk.submit(candidate)

    def _null(self, desk: Desk) -> Candidate:
        """Stock itself, told as any other candidate: what it seems to gain is noise."""
        brief = desk.brief
        return self._candidate(
            "stock again",
            brief.stock_backend,
            brief.stock_params,
            "null",
            Hypothesis(mechanism="null control"),
        )

    def _recalled(self, desk: Desk) -> list[Candidate]:
        """Records that may help here, best first."""
        return [
            Candidate(
                name=f"recalled {one.mechanism}"[:80],
                backend=one.backend,
                params=one.params,
                patch=one.patch,
                hypothesis=Hypothesis(mechanism=one.mechanism, expected_speedup=one.expected_speedup),
                origin="memory",
                explorer=self._name,
                record=one.record,
            )
            for one in desk.recall(limit=max(1, self._batch - 1))
        ]

    def _search(self, desk: Desk, seed: int, found: dict[str, tuple[Candidate, Told]]) -> None:
        """Ask the sampler for batches until the budget is spent or nothing new comes."""
        spaces = {space.mechanism: space for space in desk.brief.spaces}
        if not spaces:
            return
        study = _study(seed)
        repeats = 0
        while repeats < REPEATS:
            asked: list[tuple[optuna.trial.Trial, Candidate]] = []
            while len({one.id for _, one in asked}) < self._batch and repeats < REPEATS:
                trial = study.ask()
                candidate = self._drawn(trial, spaces)
                if candidate.id in found:
                    study.tell(trial, _value(found[candidate.id][1]))
                    repeats += 1
                    continue
                repeats = repeats + 1 if candidate.id in {one.id for _, one in asked} else 0
                asked.append((trial, candidate))
            if not asked:
                return
            distinct = {one.id: one for _, one in asked}
            self._try(desk, list(distinct.values()), found)
            for trial, one in asked:
                study.tell(trial, _value(found[one.id][1]))

    def _drawn(self, trial: optuna.trial.Trial, spaces: Mapping[str, Space]) -> Candidate:
        """A point of one of the spaces."""
        name = str(trial.suggest_categorical(SPACE, sorted(spaces)))
        space = spaces[name]
        params = dict(space.fixed)
        for knob in space.knobs:
            place = trial.suggest_int(f"{name}/{knob.name}", 0, len(knob.values) - 1)
            params[knob.name] = knob.values[place]
        return self._candidate(name, space.backend, params, "search", Hypothesis(mechanism=name))

    def _merged(self, desk: Desk, found: Mapping[str, tuple[Candidate, Told]]) -> list[Candidate]:
        """The two best of one backend and drafter, each knob taken from either."""
        best = [one for one, _ in self._best(found, desk) if one.patch is None]
        made: dict[str, Candidate] = {}
        for first in best[:PARENTS]:
            for second in best[: PARENTS + 1]:
                alike = first.backend == second.backend and first.params.keys() == second.params.keys()
                if first.id == second.id or not alike:
                    continue
                for knob in sorted(first.params):
                    params = first.params | {knob: second.params[knob]}
                    hypothesis = Hypothesis(mechanism=first.hypothesis.mechanism)
                    one = self._candidate(
                        f"{first.name} x {second.name}", first.backend, params, "merge", hypothesis
                    )
                    if one.id not in found:
                        made[one.id] = one
        return list(made.values())[: self._batch]

    def _try(
        self, desk: Desk, candidates: Sequence[Candidate], found: dict[str, tuple[Candidate, Told]]
    ) -> None:
        """Have candidates tried, as many at a time as fit a trial."""
        for start in range(0, len(candidates), self._batch):
            group = list(candidates[start : start + self._batch])
            for one, told in zip(group, desk.trial(group), strict=True):
                found.setdefault(one.id, (one, told))

    def _best(self, found: Mapping[str, tuple[Candidate, Told]], desk: Desk) -> list[tuple[Candidate, Told]]:
        """Candidates that beat the null control, best first."""
        null = found.get(self._null(desk).id)
        least = 0.0 if null is None else max(0.0, _value(null[1]))
        alive = [
            (one, told)
            for one, told in found.values()
            if told.passed and one.origin != "null" and _value(told) > least
        ]
        return sorted(alive, key=lambda pair: (-_value(pair[1]), pair[0].id))

    def _candidate(
        self, name: str, backend: str, params: Mapping[str, Param], origin: Origin, hypothesis: Hypothesis
    ) -> Candidate:
        return Candidate(
            name=name[:80],
            backend=backend,
            params=dict(params),
            hypothesis=hypothesis,
            origin=origin,
            explorer=self._name,
        )


def _study(seed: int) -> optuna.study.Study:
    """A study in memory.

    Raises:
        ModelError: Optuna is not installed.
    """
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError:
        raise ModelError("the offline explorer needs Optuna; install specpilot-harness[loop]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _value(told: Told) -> float:
    """What the sampler maximises: the log speedup, where the candidate is lossless."""
    if told.effect is None or told.outcome not in ("PASSED", "ACCEPT", "NO_GAIN", "INCONCLUSIVE"):
        return FAILED
    return max(FAILED, math.log(told.effect.point))
