"""A desk in memory: every candidate passes the screen, and what was asked is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_loop.protocols import Brief, BudgetSpent, Recalled
from agent_loop.records import Candidate, Told
from harness.plan import load_job


class MemoryDesk:
    def __init__(self, worktree: Path, trials: int = 9) -> None:
        self._worktree = worktree
        self._left = trials
        self.tried: list[list[Candidate]] = []
        self.submitted: list[Candidate] = []

    @property
    def brief(self) -> Brief:
        deployment = load_job("reproduce-cpu").deployment
        return Brief(
            campaign="c",
            deployment=deployment,
            stock_backend="a:b",
            stock_params={},
            spaces=(),
            gaps=(),
            ceiling=2.0,
        )

    @property
    def worktree(self) -> Path:
        self._worktree.mkdir(exist_ok=True)
        return self._worktree

    def trial(self, candidates: Sequence[Candidate]) -> list[Told]:
        self._left -= len(candidates)
        if self._left < 0:
            raise BudgetSpent("trials", "e")
        self.tried.append(list(candidates))
        return [
            Told(candidate_id=one.id, stage="screen", outcome="PASSED", detail="faster") for one in candidates
        ]

    def recall(self, words: str = "", limit: int = 8) -> list[Recalled]:
        return []

    def submit(self, candidate: Candidate) -> Told:
        self.submitted.append(candidate)
        return Told(candidate_id=candidate.id, stage="screen", outcome="PASSED", detail="waits")

    def heard(self) -> list[Told]:
        return []
