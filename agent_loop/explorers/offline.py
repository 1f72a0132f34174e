"""Search without a language model: memory, knobs and edits by Optuna, recombination, a null control.

Deterministic for its seed and for what it is told: started anew with the same answers it asks the same
questions. It has the tools of every explorer and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent_loop.explorers.knobs import Found, Point, crossed, params_of, point_of, search, value
from agent_loop.explorers.transforms import patch_of
from agent_loop.explorers.workbench import Workbench
from agent_loop.protocols import BudgetSpent, Desk, Space
from agent_loop.records import CLAIM_CHARACTERS, Budget, Candidate, Hypothesis, Origin, Told
from harness.plan import Param

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
        self._points: dict[str, Point] = {}  # where candidates were drawn, by id

    @property
    def name(self) -> str:
        """See `Explorer`."""
        return self._name

    def explore(self, desk: Desk, budget: Budget, seed: int) -> None:
        """See `Explorer`."""
        del budget  # the desk counts
        found: Found = {}
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

    def _search(self, desk: Desk, seed: int, found: Found) -> None:
        """Ask the sampler for batches until the budget is spent or nothing new comes."""
        search(
            desk.brief.spaces,
            lambda point: self._at(desk, point, "search"),
            lambda candidates: self._try(desk, candidates, found),
            found,
            self._batch,
            seed,
        )

    def _at(self, desk: Desk, point: Point, origin: Origin, name: str = "") -> Candidate:
        """The candidate of a point: an arm, or where its source is changed a patch."""
        params, mechanism = params_of(point), point.space.mechanism
        made = self._candidate(
            name or mechanism,
            point.space.backend,
            params,
            origin,
            Hypothesis(mechanism=mechanism, gap=point.space.gap),
        )
        edited = patch_of(point.space, point.values)
        if edited is not None:
            backend, files = edited
            bench = Workbench(desk.worktree)
            bench.clear()
            for path, text in files.items():
                bench.edit(path, "", text)
            edits = {edit.name: point.values[edit.name] for edit in point.space.edits}
            told = ", ".join(f"{key}={value}" for key, value in sorted(edits.items()))
            made = msgspec.structs.replace(
                made,
                name=f"{made.name}, edited: {told}"[:80],
                backend=backend,
                patch=bench.patch(),
                origin="transform" if origin == "search" else origin,
                hypothesis=Hypothesis(
                    mechanism=mechanism,
                    gap=point.space.gap,
                    explanation=f"source with {told}"[:CLAIM_CHARACTERS],
                ),
            )
        self._points.setdefault(made.id, point)
        return made

    def _merged(self, desk: Desk, found: Found) -> list[Candidate]:
        """The best of one space, each with one value of another's."""
        known = [(one, self._point(one, desk.brief.spaces)) for one, _ in self._best(found, desk)]
        best = [(one, point) for one, point in known if point is not None]
        made: dict[str, Candidate] = {}
        for first, at in best[:PARENTS]:
            for second, other in best[: PARENTS + 1]:
                for point in crossed(at, other):
                    one = self._at(desk, point, "merge", f"{first.name} x {second.name}")
                    if one.id not in found:
                        made[one.id] = msgspec.structs.replace(one, parents=(first.id, second.id))
        return list(made.values())[: self._batch]

    def _point(self, candidate: Candidate, spaces: Sequence[Space]) -> Point | None:
        """Where a candidate lies: it was drawn there, or its parameters are those of a space."""
        if candidate.id in self._points or candidate.patch is not None:
            return self._points.get(candidate.id)
        for space in spaces:
            point = point_of(space, candidate.backend, candidate.params)
            if point is not None:
                return point
        return None

    def _try(self, desk: Desk, candidates: Sequence[Candidate], found: Found) -> None:
        """Have candidates tried, as many at a time as fit a trial."""
        for start in range(0, len(candidates), self._batch):
            group = list(candidates[start : start + self._batch])
            for one, told in zip(group, desk.trial(group), strict=True):
                found.setdefault(one.id, (one, told))

    def _best(self, found: Found, desk: Desk) -> list[tuple[Candidate, Told]]:
        """Candidates that beat the null control, by what they surely gain: a point is mostly luck."""
        null = found.get(self._null(desk).id)
        least = 0.0 if null is None else max(0.0, value(null[1]))
        alive = [
            (one, told)
            for one, told in found.values()
            if told.passed and one.origin != "null" and value(told) > least
        ]
        return sorted(alive, key=lambda pair: (-_surely(pair[1]), pair[0].id))

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


def _surely(told: Told) -> float:
    """The lower end of what a candidate gains; 0 where nothing was measured."""
    return 0.0 if told.effect is None else told.effect.low
