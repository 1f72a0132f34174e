"""A knob search over stock alone: what its users would find, before anything of ours is tried."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from agent_loop.explorers.knobs import Found, params_of, search
from agent_loop.protocols import Space
from agent_loop.records import Candidate, Effect, Hypothesis, Told
from harness.plan import Param

NAME = "tuner"
AS_RELEASED = Effect(point=1.0, low=1.0, high=1.0, confidence=1.0, blocks=0)


class _Enough(Exception):
    """All trials are made."""


def tune(
    trial: Callable[[Sequence[Candidate]], list[Told]], space: Space, trials: int, batch: int, seed: int
) -> None:
    """Try settings of stock's knobs.

    Args:
        trial: measures candidates beside stock as released, on public rows.
        space: stock's arm with its knobs; its fixed parameters are those of stock as released.
        trials: settings that are tried, at most.
        batch: that share their launches.
        seed: of the sampler.
    """
    stock = _setting(space.backend, space.fixed)
    told = Told(candidate_id=stock.id, stage="tune", outcome="PASSED", detail="", effect=AS_RELEASED)
    found: Found = {stock.id: (stock, told)}

    def attempt(candidates: Sequence[Candidate]) -> None:
        left = trials - (len(found) - 1)
        chosen = candidates[:left]
        for one, answer in zip(chosen, trial(chosen) if chosen else [], strict=True):
            found[one.id] = (one, answer)
        if len(chosen) < len(candidates) or left == len(chosen):
            raise _Enough

    with contextlib.suppress(_Enough):
        search([space], lambda one: _setting(space.backend, params_of(one)), attempt, found, batch, seed)


def _setting(backend: str, params: Mapping[str, Param]) -> Candidate:
    return Candidate(
        name="stock, tuned",
        backend=backend,
        params=dict(params),
        hypothesis=Hypothesis(mechanism="tuning"),
        origin="tuning",
        explorer=NAME,
    )
