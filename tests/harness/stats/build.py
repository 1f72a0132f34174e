"""Responses with times and counts of choice, and worlds with a known true speedup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.records import DecodeStep, Response
from harness.stats.grid import Floats, Grid


def response(
    prompt: str = "p0",
    arm: str = "ar",
    *,
    seconds: float = 1.0,
    first: float | None = None,
    tokens: int = 2,
    launch: int = 0,
    block: int = 0,
    order: int = 0,
) -> Response:
    """A good response of one-token steps; the first token comes at a tenth unless told."""
    end_ns = round(seconds * 1e9)
    first_ns = end_ns // 10 if first is None else round(first * 1e9)
    return Response(
        prompt_id=prompt,
        arm=arm,
        launch=launch,
        block=block,
        order=order,
        status="ok",
        prompt_tokens=3,
        started_at=0.0,
        token_ids=tuple(range(tokens)),
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=first_ns,
        end_ns=end_ns,
        steps=tuple(plain_step(end_ns) for _ in range(tokens - 1)),
    )


def failed(
    prompt: str = "p0", arm: str = "ar", *, launch: int = 0, block: int = 0, order: int = 0
) -> Response:
    return Response(
        prompt_id=prompt,
        arm=arm,
        launch=launch,
        block=block,
        order=order,
        status="failed",
        prompt_tokens=3,
        started_at=0.0,
        error="refused on purpose",
    )


def plain_step(at_ns: int = 1) -> DecodeStep:
    return DecodeStep(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1, at_ns=at_ns)


def with_steps(steps: Sequence[tuple[int, int, int]], prompt: str = "p0") -> Response:
    """A response of steps given as (drafted, accepted, emitted)."""
    return Response(
        prompt_id=prompt,
        arm="stock",
        launch=0,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=3,
        started_at=0.0,
        token_ids=tuple(range(1 + sum(emitted for _, _, emitted in steps))),
        finish_reason="stop",
        prefill_tokens=1,
        first_token_ns=1,
        end_ns=10,
        steps=tuple(
            DecodeStep(num_draft_tokens=d, num_accepted_tokens=a, num_emitted_tokens=e, at_ns=10)
            for d, a, e in steps
        ),
    )


def arm_responses(
    arm: str,
    seconds: Floats,
    *,
    blocks: int = 1,
    tokens: Sequence[int] | None = None,
    first: float | None = None,
) -> list[Response]:
    """Responses from a table of seconds [launch x block, prompt]."""
    return [
        response(
            f"p{column}",
            arm,
            seconds=float(seconds[row, column]),
            first=first,
            tokens=2 if tokens is None else tokens[column],
            launch=row // blocks,
            block=row % blocks,
            order=(row % blocks) * seconds.shape[1] + column,
        )
        for row in range(seconds.shape[0])
        for column in range(seconds.shape[1])
    ]


def grid_of(baseline: Floats, arm: Floats, launches: int = 1) -> Grid:
    """A grid of equal token counts from times [rows, prompts]."""
    rows, width = baseline.shape
    return Grid(
        launch_of=np.repeat(np.arange(launches), rows // launches),
        units=tuple(f"p{n}" for n in range(width)),
        prompts=width,
        baseline_ns=baseline,
        arm_ns=arm,
        baseline_tokens=np.ones_like(baseline),
        arm_tokens=np.ones_like(baseline),
    )


class World(NamedTuple):
    """A population of prompts and launches. All but `prompts` and sizes are in log time."""

    prompts: int = 24
    launches: int = 2
    blocks: int = 2
    length: float = 0.3  # spread of prompt lengths
    gain: float = 0.3  # spread of the prompts' own speedups
    tie: float = -0.3  # correlation of length and speedup
    launch: float = 0.01  # launch effect on the speedup
    block: float = 0.01  # block effect on the speedup
    cell: float = 0.02  # noise of each time
    drift: float = 0.03  # of the machine over a launch, both arms alike
    mean: float = 0.4

    @property
    def true_log_ratio(self) -> float:
        """Log of E[baseline] / E[arm] over prompts, for a typical launch."""
        own = (self.length - self.gain * self.tie) ** 2 + self.gain**2 * (1.0 - self.tie**2)
        return self.length**2 / 2.0 - (own / 2.0 - self.mean)

    def draw(self, rng: np.random.Generator) -> Grid:
        """One run."""
        rows = self.launches * self.blocks
        one, other = rng.standard_normal((2, self.prompts))
        baseline = np.exp(self.length * one)
        gain = self.mean + self.gain * (self.tie * one + np.sqrt(1.0 - self.tie**2) * other)
        launch = np.repeat(rng.normal(0.0, self.launch, self.launches), self.blocks)[:, None]
        block = rng.normal(0.0, self.block, rows)[:, None]
        slope = np.linspace(0.0, self.drift, self.blocks) if self.blocks > 1 else np.zeros(1)
        machine = np.tile(slope, self.launches)[:, None]
        noise = rng.normal(0.0, self.cell, (2, rows, self.prompts))
        return grid_of(
            baseline * np.exp(machine + noise[0]),
            baseline * np.exp(machine - gain + launch + block + noise[1]),
            self.launches,
        )
