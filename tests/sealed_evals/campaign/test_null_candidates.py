"""Candidates that are no faster, by an explorer who learns from everything he is told.

Every candidate speeds some prompts up and slows others down, by a hidden trait of each prompt, and gains
nothing over the source that the shards are drawn from. The explorer knows the traits and times of all public
rows, fits each candidate to them, and leans towards whatever was accepted before. Timings have launch, block
and prompt effects; interval and decision are those of a confirmation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from harness.plan import StatsSpec
from harness.records import DecodeStep, Response
from harness.stats.speedup import compare_arms
from sealed_evals.campaign.confirm import confirm
from sealed_evals.campaign.decide import decide
from sealed_evals.campaign.ledger import read_ledger
from sealed_evals.campaign.opening import Request
from sealed_evals.campaign.records import Outcome
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, open_shard
from tests.sealed_evals.campaign import build

Floats = npt.NDArray[np.float64]
TRAITS, EFFECT, PUBLIC_ROWS, ROWS = 40, 0.1, 40, 16
LEVEL = 0.05
LAUNCHES, BLOCKS = 2, 2


class Explorer:
    """Proposes directions in the space of traits."""

    def __init__(self, rng: np.random.Generator, public: Floats) -> None:
        self.rng, self.public = rng, public
        self.liked = np.zeros(TRAITS)

    def propose(self) -> Floats:
        """The best on the public rows among fifty, leaning towards what was accepted."""
        fitted = self.public.mean(axis=0) / np.linalg.norm(self.public.mean(axis=0))
        drawn = self.rng.normal(size=(50, TRAITS)) / 2.0 + 2.0 * fitted + self.liked
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        best: Floats = drawn[np.argmax((self.public @ drawn.T).mean(axis=0))]
        return best

    def hear(self, direction: Floats, outcome: Outcome) -> None:
        self.liked += direction if outcome.accepted else 0.0


def traits(rng: np.random.Generator, rows: int) -> Floats:
    """Of prompts [rows, traits]: independent, standard normal."""
    return rng.normal(size=(rows, TRAITS))


def judge(rng: np.random.Generator, direction: Floats, prompts: Floats) -> Outcome:
    """The outcome on prompts with these traits; the mean time over the source is that of stock."""
    effect = EFFECT * (prompts @ direction) + EFFECT**2 / 2.0  # E[exp(-effect)] is 1
    base = np.exp(rng.normal(0.0, 0.3, len(prompts))) * 1e9
    baseline, arm, order = [], [], 0
    for launch in range(LAUNCHES):
        tilt = rng.normal(0.0, 0.01)
        for block in range(BLOCKS):
            drift = rng.normal(0.0, 0.01)
            for place, time in enumerate(base):
                noise = rng.normal(0.0, 0.01, 2)
                where = (launch, block, f"p{place}", order)
                baseline.append(response("stock", *where, time * np.exp(noise[0])))
                slow = time * np.exp(noise[1] + tilt + drift - effect[place])
                arm.append(response("candidate", *where, slow))
                order += 1
    spec = StatsSpec(confidence=1.0 - LEVEL, resamples=200)
    found = compare_arms(baseline, arm, {f"p{n}": "all" for n in range(len(prompts))}, spec)
    return decide(build.report(found.headline), gain=0.0)


def response(arm: str, launch: int, block: int, prompt: str, order: int, end_ns: float) -> Response:
    return Response(
        prompt_id=prompt,
        arm=arm,
        launch=launch,
        block=block,
        order=order,
        status="ok",
        prompt_tokens=3,
        started_at=1.0,
        token_ids=(1, 2),
        finish_reason="length",
        prefill_tokens=1,
        first_token_ns=1000,
        end_ns=int(end_ns),
        steps=(DecodeStep(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1, at_ns=2000),),
    )


@pytest.mark.slow
def test_a_hundred_adaptive_null_candidates_are_accepted_at_most_at_the_nominal_rate(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    place = build.start(tmp_path, shards=100, rows=ROWS, public_rows=PUBLIC_ROWS, level=LEVEL)
    explorer = Explorer(rng, traits(rng, PUBLIC_ROWS))
    on_public, accepted = [], 0
    for number in range(100):
        direction = explorer.propose()
        if number % 10 == 0:
            on_public.append(judge(rng, direction, explorer.public).accepted)

        def on_fresh_rows(request: Request, direction: Floats = direction) -> Outcome:
            folder = CampaignFolder(Path(request.campaign))
            data = folder.shard(request.shard).read_bytes()
            campaign, _ = load_campaign(folder)
            rows = open_shard(data, bytes.fromhex(request.key), campaign, request.shard, "shard").rows
            return judge(rng, direction, traits(rng, len(rows)))

        outcome = confirm(
            build.CANDIDATE,
            place.folder,
            place.root,
            evals_dir=None,
            now=lambda: build.NOW,
            judge=on_fresh_rows,
        )
        explorer.hear(direction, outcome)
        accepted += outcome.accepted

    assert accepted <= 100 * LEVEL
    assert sum(on_public) >= 9  # of ten: the same candidates, judged on rows that the explorer has seen
    entries, _ = read_ledger(place.folder.ledger)
    assert len({entry.shard for entry in entries if entry.event == "opened"}) == 100
    assert sum(entry.accepted is True for entry in entries) == accepted


@pytest.mark.slow
def test_the_rate_holds_over_thousands_of_candidates() -> None:
    accepted, told = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(100 + seed)
        explorer = Explorer(rng, traits(rng, PUBLIC_ROWS))
        for _ in range(100):
            direction = explorer.propose()
            outcome = judge(rng, direction, traits(rng, ROWS))
            explorer.hear(direction, outcome)
            accepted += outcome.accepted
            told += 1
    print(f"{accepted} of {told} accepted at level {LEVEL}")
    assert accepted / told <= LEVEL


def test_a_candidate_that_is_faster_everywhere_is_accepted() -> None:
    rng = np.random.default_rng(3)
    direction = np.ones(TRAITS) / np.sqrt(TRAITS)
    assert judge(rng, direction, np.ones((ROWS, TRAITS))).accepted
    assert not judge(rng, direction, -np.ones((ROWS, TRAITS))).accepted
