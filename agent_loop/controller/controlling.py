"""The controller: explorers propose, it tries, measures, spends confirm slots and remembers.

Everything it knows lies in the database and in the folders of the trials, and every step can be made
twice: a controller that was killed is started again with the same folder and goes on.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from agent_loop.controller.ablation import ablated, variants
from agent_loop.controller.confirming import Confirming, confirm
from agent_loop.controller.controls import check_controls, control_arms, reading
from agent_loop.controller.database import Database
from agent_loop.controller.desk import Call, QueueDesk, start
from agent_loop.controller.policy import check
from agent_loop.controller.purse import Purse
from agent_loop.controller.stacking import added_up, stacked
from agent_loop.controller.trials import Bench, run_trial
from agent_loop.controller.tuning import best_tuned, held_against_tuned
from agent_loop.protocols import Brief, Explorer, Recalled
from agent_loop.records import Candidate, Told, Verdict
from harness.errors import InvalidRun

State = Literal[
    "began",
    "tuned",  # stock's own knobs are searched
    "trial",  # public verdicts of a trial are stored
    "submitted",
    "explored",  # every explorer of a round has ended
    "measured",  # public verdicts of a round's submissions are stored
    "slot-opened",  # a confirm slot is spent
    "slot-answered",  # the other process has said its line
    "slot-closed",  # and it is written down
    "confirmed",  # the verdict is stored
    "stacked",  # what was accepted was tried together
    "ablated",
    "remembered",
    "ended",
]
Recall = Callable[[str, int], list[Recalled]]
Remember = Callable[[Candidate, Verdict], None]
Trial = Callable[[Sequence[Candidate]], list[Told]]
ABLATED_AT_ONCE = 4  # arms of a run: each of a patch is a process with weights of its own


def _no_tuner(trial: Trial) -> None:
    """Leaves stock as it is."""


def _forget(one: str, other: str, reason: str) -> None:
    """Notes no conflict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One campaign.

    Raises (from `run`):
        InvalidRun: a control did not read what it must; nothing that was measured can be believed.
        TrialFailed: the sealed rows could not be made.
    """

    bench: Bench
    database: Database
    brief: Brief
    unseen: Path
    keys: Path  # the folder of the sealed campaign's controller
    recall: Recall
    remember: Remember
    tuner: Callable[[Trial], None] = _no_tuner  # searches stock's knobs, by trials
    conflict: Callable[[str, str, str], None] = _forget  # notes that two candidates do not add up, and why
    sources: Callable[[], Mapping[str, str]] = dict  # texts of the engine's modules, by module
    told: Callable[[], None] = lambda: None  # after every change, for whoever watches
    at: Callable[[State], None] = lambda _: None  # told each state; tests end the process there
    calls: queue.Queue[Call] = field(default_factory=queue.Queue)

    def run(self, explorers: Sequence[Explorer]) -> list[Verdict]:
        """Run the campaign, or what is left of it; the accepted verdicts."""
        plan = self.bench.loop.plan
        self.database.claim("loop", self.bench.loop.hash)
        if not self.database.events():
            rules = {"level": plan.rules.level, "slots": plan.rules.confirm_slots}
            self.database.tell("began", {"campaign": plan.name, **rules})
        self._reached("began")
        self._tune()
        self._reached("tuned")
        purse = Purse(plan.name, plan.budget, time.monotonic)
        for number in range(plan.rounds):
            self._explore(explorers, number, purse)
            self._reached("explored")
            self._try_released(number)
            self._settle(number)
        self._stack()
        self._reached("stacked")
        accepted = self.accepted()
        for verdict in accepted:
            self._ablate(verdict)
        self._remember_all()
        if not self._said("ended"):
            self.database.tell("ended", {"accepted": [one.candidate_id for one in accepted]})
        self._reached("ended")
        return accepted

    def accepted(self) -> list[Verdict]:
        """Verdicts of confirmed candidates, best first."""
        found = [v for v in self.database.verdicts() if v.stage == "confirm" and v.outcome == "ACCEPT"]
        return sorted(found, key=lambda v: -(v.effect.low if v.effect is not None else 0.0))

    def _tune(self) -> None:
        """Search stock's own knobs on public rows, before anything else is tried."""
        if not self.bench.loop.plan.tune.trials or self._said("tuned"):
            return
        self.tuner(self._tuning_trial)
        trials = self.database.tuning()
        best = best_tuned(trials)
        self.database.tell("tuned", {"trials": len(trials), "params": None if best is None else best.params})

    def _tuning_trial(self, candidates: Sequence[Candidate]) -> list[Told]:
        """Stock with other values of its knobs; what was tried before is not tried again."""
        found = {one.id: verdict for one, verdict in self.database.tuning()}
        fresh = {one.id: one for one in candidates if one.id not in found}
        if fresh:
            for one, verdict in zip(
                fresh.values(),
                run_trial(self.bench, "tune", self.bench.loop.plan.screen, list(fresh.values())),
                strict=True,
            ):
                found[one.id] = verdict
                if verdict.outcome != "INFRA":  # says nothing of the knob: it may be tried again
                    self.database.tuned(one, verdict)
            self.told()
        return [found[one.id].told for one in candidates]

    def _explore(self, explorers: Sequence[Explorer], number: int, purse: Purse) -> None:
        """Answer the explorers of a round until each has ended."""
        plan = self.bench.loop.plan
        specs = {one.name: one for one in plan.explorers}
        running = {explorer.name for explorer in explorers}
        for explorer in explorers:
            spec = specs[explorer.name]
            worktree = self.bench.folder.parent / "worktrees" / explorer.name
            mine = Purse(explorer.name, spec.budget, time.monotonic, purse)
            desk = QueueDesk(self.calls, explorer.name, self.brief, worktree, mine)
            seed = spec.seed + 1000 * number + plan.seed

            def work(explorer: Explorer = explorer, desk: QueueDesk = desk, seed: int = seed) -> None:
                explorer.explore(desk, specs[explorer.name].budget, seed)

            start(explorer.name, work, self.calls)
        while running:
            call = self.calls.get()
            if call.kind == "ended":
                running.discard(call.explorer)
                if call.payload is not None:
                    self.database.tell(
                        "explorer-failed", {"explorer": call.explorer, "error": repr(call.payload)[:500]}
                    )
                continue
            call.answer.put(self._answer(call, number))
            self.told()

    def _answer(self, call: Call, number: int) -> object:
        if call.kind == "trial":
            return self._trial(call.payload, number)
        if call.kind == "submit":
            return self._submit(call.payload, call.explorer, number)
        if call.kind == "recall":
            return self.recall(*call.payload)
        mine = self._settled_before(number, call.explorer)
        later = ("measure", "confirm")
        return [v.told for v in self.database.verdicts() if v.candidate_id in mine and v.stage in later]

    def _trial(self, candidates: Sequence[Candidate], number: int) -> list[Told]:
        """Policy, build, losslessness and screen; what was tried before is not tried again.

        Of what was measured or confirmed explorers are told in later rounds than its own only: one that
        is started anew in a round hears what it heard there the first time, and asks the same again.
        """
        fresh: dict[str, Candidate] = {}
        broken: dict[str, Verdict] = {}
        for one in candidates:
            self.database.add(one)
            if self.database.tried(one.id) is not None:
                continue
            finding = check(one, self.bench.loop.trusted, read=self.database.released(one.id))
            if finding is not None:
                self.database.decide(
                    Verdict(
                        candidate_id=one.id, stage="policy", outcome=finding.outcome, detail=finding.detail
                    )
                )
            else:
                fresh[one.id] = one
        if fresh:
            shape = self.bench.loop.plan.screen
            for verdict in run_trial(self.bench, "screen", shape, list(fresh.values())):
                if verdict.outcome == "INFRA":  # says nothing of the candidate: it may be tried again
                    self.database.tell(
                        "trial-failed", {"candidate": verdict.candidate_id, "said": verdict.detail}
                    )
                    broken[verdict.candidate_id] = verdict
                else:
                    self.database.decide(verdict)
        self._reached("trial")
        settled = self._settled_before(number)
        found = [
            (self.database.last(one.id) if one.id in settled else self.database.tried(one.id))
            or broken.get(one.id)
            for one in candidates
        ]
        return [verdict.told for verdict in found if verdict is not None]

    def _settled_before(self, number: int, explorer: str | None = None) -> set[str]:
        """Candidates that were submitted in rounds before this one."""
        return {one.id for one, when in self.database.submissions(explorer) if when < number}

    def _submit(self, candidate: Candidate, explorer: str, number: int) -> Told:
        (told,) = self._trial([candidate], number)
        if told.passed:
            self.database.submit(candidate, explorer, number)
            self._reached("submitted")
        return told

    def _try_released(self, number: int) -> None:
        """What a person has let go on is tried and submitted, whether its explorer asks again or not."""
        known = {one.id for one, _ in self.database.submissions()}
        for one in self.database.candidates():
            if one.id not in known and self.database.released(one.id):
                self._submit(one, one.explorer, number)

    def _settle(self, number: int) -> None:
        """Measure a round's submissions and confirm the best, while slots are left."""
        mine = [candidate for candidate, when in self.database.submissions() if when == number]
        mine.sort(key=lambda one: (-self._gain(one), one.id))
        self._measure(mine[: self.bench.loop.plan.submissions])
        self._reached("measured")
        passed = [one for one in mine if self._passed_measure(one)]
        passed.sort(key=lambda one: (-self._low(one), one.id))
        for one in passed:
            self._confirm(one)

    def _measure(self, candidates: Sequence[Candidate], parts: Sequence[Candidate] = ()) -> None:
        """The verdict of "measure" on candidates, with controls and tuned stock beside them.

        Args:
            candidates: without a verdict yet, or nothing is done.
            parts: of the only candidate, a stack; whether they add up is decided, too.
        """
        fresh = [one for one in candidates if self.database.verdict(one.id, "measure") is None]
        if not fresh:
            return
        plan = self.bench.loop.plan
        controls = control_arms(self.bench.loop)
        tuned = best_tuned(self.database.tuning())
        arms = [*fresh, *parts, *controls.values(), *([] if tuned is None else [tuned])]
        verdicts = run_trial(self.bench, "measure", plan.measure, arms, tuned)
        after = len(fresh) + len(parts)
        told = dict(zip(controls, verdicts[after : after + len(controls)], strict=True))
        self.database.tell("controls", {name: reading(verdict) for name, verdict in told.items()})
        problem = check_controls(told, plan.controls.delay)
        if problem is not None:
            self.database.tell("stopped", {"reason": problem})
            raise InvalidRun(f"campaign {plan.name} stops: {problem}")
        if tuned is not None:
            self.database.tell("tuned-measured", {"params": tuned.params, "effect": verdicts[-1].effect})
        if parts:
            apart = verdicts[len(fresh) : after]
            self.database.decide(added_up(fresh[0], verdicts[0], list(zip(parts, apart, strict=True))))
        for verdict in verdicts[: len(fresh)]:
            held = held_against_tuned(verdict, plan.rules)
            self.database.decide(msgspec.structs.replace(held, stage="measure"))

    def _confirm(self, candidate: Candidate) -> None:
        """Spend a slot on a candidate, unless it has its verdict."""
        if self.database.verdict(candidate.id, "confirm") is None:
            desk = Confirming(
                bench=self.bench,
                database=self.database,
                unseen=self.unseen,
                keys=self.keys,
                at=self._reached,
            )
            self.database.decide(confirm(desk, candidate))
        self._reached("confirmed")

    def _stack(self) -> None:
        """Try what was accepted together, through the whole cascade, with a slot of its own."""
        accepted = [self.database.candidate(verdict.candidate_id) for verdict in self.accepted()]
        together = stacked([one for one in accepted if one is not None], self.bench.loop.stock)
        if together is None or self.database.verdict(together.id, "confirm") is not None:
            return
        others = [slot for slot in self.database.slots() if slot.candidate != together.id]
        if len(others) >= self.bench.loop.plan.rules.confirm_slots:
            return
        parts = [one for name in together.parents if (one := self.database.candidate(name)) is not None]
        (told,) = self._trial([together], 0)
        if told.passed:
            self._measure([together], parts)
        verdict = self.database.verdict(together.id, "stack")
        if verdict is not None and verdict.outcome == "PASSED" and self._passed_measure(together):
            self._confirm(together)
        elif len(parts) == 2:  # of more, nobody knows who does not go with whom
            last = self.database.last(together.id)
            self.conflict(parts[0].id, parts[1].id, "" if last is None else last.detail)

    def _ablate(self, verdict: Verdict) -> None:
        """Each changed knob or place of an accepted candidate given back in turn, on public rows."""
        shape = self.bench.loop.plan.ablate
        candidate = self.database.candidate(verdict.candidate_id)
        if shape is None or candidate is None or self.database.verdict(candidate.id, "ablate") is not None:
            return
        without = variants(candidate, self.bench.loop.stock, self.sources())
        if not without:
            return
        for one in without.values():
            self.database.add(one)
        arms = [candidate, *without.values()]
        verdicts: list[Verdict] = []
        for at in range(0, len(arms), ABLATED_AT_ONCE):
            verdicts += run_trial(self.bench, "screen", shape, arms[at : at + ABLATED_AT_ONCE])
        self.database.decide(
            Verdict(
                candidate_id=candidate.id,
                stage="ablate",
                outcome="PASSED",
                detail=ablated(verdicts[0], dict(zip(without, verdicts[1:], strict=True))),
                evidence=verdicts[0].evidence,
            )
        )
        self._reached("ablated")

    def _remember_all(self) -> None:
        """Every verdict of a confirmation, and every submission that failed before it, into memory."""
        asked = {one.id: one for one, _ in self.database.submissions()}
        stacks = {one.id: one for one in self.database.candidates() if one.origin == "merge"}
        for candidate in (asked | stacks).values():
            verdict = self.database.verdict(candidate.id, "confirm") or self.database.verdict(
                candidate.id, "measure"
            )
            if verdict is not None and verdict.outcome not in ("UNPROVEN", "INFRA", "INVALID"):
                self.remember(candidate, verdict)
                self._reached("remembered")

    def _passed_measure(self, candidate: Candidate) -> bool:
        """Whether it has passed the measurement on public rows."""
        verdict = self.database.verdict(candidate.id, "measure")
        return verdict is not None and verdict.outcome == "PASSED"

    def _gain(self, candidate: Candidate) -> float:
        """What it surely gains, by the screen."""
        verdict = self.database.verdict(candidate.id, "screen")
        return verdict.effect.low if verdict is not None and verdict.effect is not None else 0.0

    def _low(self, candidate: Candidate) -> float:
        verdict = self.database.verdict(candidate.id, "measure")
        return verdict.effect.low if verdict is not None and verdict.effect is not None else 0.0

    def _said(self, kind: str) -> bool:
        """Whether an event of this kind was told."""
        return any(event.kind == kind for event in self.database.events())

    def _reached(self, state: State) -> None:
        self.told()
        self.at(state)
