"""Graphs of a CPU that run each program before it is used, as a recording on a GPU does."""

from __future__ import annotations

from reference_mechanisms.engine.graphs import WARM_UPS, Graphs, Program


class Rehearsed(Graphs):
    """A program that spoils what a request needs, when it runs on whatever its buffers hold, is seen."""

    rehearsals = 0

    def program(self, work: Program) -> Program:
        for _ in range(WARM_UPS):
            work()
            self.rehearsals += 1
        return work
