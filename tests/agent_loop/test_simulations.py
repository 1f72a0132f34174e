"""Whole campaigns, simulated: false accepts, power, and how much the winner's public figure flatters it.

The first half draws launch blocks as `test_statistics.py` does (launches differ by 1 %, requests by 6 %,
40 requests a block) and follows the rules of a campaign: measure on public rows, confirm the best on fresh
ones, Bonferroni over the slots. The second half runs the controller itself on a host with known speeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from agent_loop.campaign import Controls, Rules, Shape
from agent_loop.protocols import Desk
from agent_loop.records import Candidate, Verdict
from harness.stats.sign_flip import sign_flip_p
from tests.agent_loop.simulated import Host, Stage, make_loop
from tests.agent_loop.test_controller import Scripted, candidate, database
from tests.agent_loop.test_statistics import BLOCKS, Floats, blocks

CANDIDATES, REAL, GAIN = 300, 30, 0.03  # one in ten gains three per cent
PUBLIC_BLOCKS = 6


class Ended(NamedTuple):
    """What simulated campaigns came to."""

    found: float  # real gains accepted, a campaign
    false: float  # share of campaigns that accepted a candidate which gains nothing
    public: Floats  # log ratios on public rows of what was accepted and is real
    confirmed: Floats  # and on unseen ones


def campaigns(count: int, slots: int, *, real: int = REAL, gain: float = GAIN, seed: int = 0) -> Ended:
    """Each measures all candidates on public rows and confirms the `slots` best of them."""
    level = Rules(alpha=0.05, confirm_slots=slots, launch_blocks=BLOCKS).level
    rng = np.random.default_rng(seed)
    found, false = 0, 0
    public: list[float] = []
    confirmed: list[float] = []
    for _ in range(count):
        gains = [gain] * real + [0.0] * (CANDIDATES - real)
        scores = np.array([blocks(rng, one, (PUBLIC_BLOCKS,)).mean() for one in gains])
        wrong = False
        for one in np.argsort(-scores)[:slots]:
            ratios = blocks(rng, gains[one], (BLOCKS,))
            if sign_flip_p(list(ratios)) > level:
                continue
            if one >= real:
                wrong = True
                continue
            found += 1
            public.append(scores[one])
            confirmed.append(float(ratios.mean()))
        false += wrong
    return Ended(found / count, false / count, np.array(public), np.array(confirmed))


@pytest.mark.parametrize(("slots", "expected"), [(10, 9.5), (20, 18.0), (40, 23.9)])
def test_a_campaign_finds_most_of_what_its_slots_allow(slots: int, expected: float) -> None:
    ended = campaigns(60, slots, seed=slots)
    assert abs(ended.found - expected) < 0.8
    assert ended.false <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 60)


@pytest.mark.slow
def test_campaigns_in_which_nothing_gains_accept_something_no_more_often_than_alpha() -> None:
    count = 400
    ended = campaigns(count, 20, real=0, seed=1)
    assert ended.false <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / count)
    assert ended.false >= 0.01  # the slots are spent, and err as they say they do
    assert ended.found == 0.0


def test_the_public_figure_of_the_accepted_flatters_and_the_confirmed_one_does_not() -> None:
    """The fewer slots, the more the best public figures were luck; fresh rows take the luck away."""
    few, many = campaigns(60, 10, seed=2), campaigns(25, 40, seed=3)
    truth = math.log1p(GAIN)
    flattery = {name: float(one.public.mean()) - truth for name, one in (("few", few), ("many", many))}
    assert flattery["few"] > 0.006
    assert flattery["few"] > flattery["many"]
    error = 3.0 * float(few.confirmed.std()) / math.sqrt(len(few.confirmed))
    assert abs(float(few.confirmed.mean()) - truth) < error + 0.001  # what 5 % failures to confirm add
    assert float(few.public.mean()) - float(few.confirmed.mean()) > 0.005


def test_the_shrinkage_of_a_public_figure_is_that_of_its_noise() -> None:
    """Regressing confirmed on public figures of all candidates gives the ratio of real to seen variance."""
    rng = np.random.default_rng(4)
    gains = rng.normal(0.0, 0.01, 4000)
    noise = float(blocks(rng, 0.0, (4000, PUBLIC_BLOCKS)).mean(axis=1).std())
    public = gains + rng.normal(0.0, noise, 4000)
    confirmed = gains + blocks(rng, 0.0, (4000, BLOCKS)).mean(axis=1)
    slope = float(np.polyfit(public, confirmed, 1)[0])
    assert slope == pytest.approx(0.01**2 / (0.01**2 + noise**2), abs=0.05)
    assert slope < 0.75


# The controller itself, on a host whose arms have known speeds; launches differ by 1 %.

TRIED = 6
LOOP = {
    "screen": Shape(prompts=2),
    "measure": Shape(prompts=3, launches=4),
    "submissions": 3,
    "rounds": 2,
    "controls": Controls(delay=0.0),  # what is simulated are candidates
}


def searched(root: Path, seed: int, gain: float) -> list[Verdict]:
    """A campaign whose explorer tries variants of whatever was confirmed; what it accepted."""
    root.mkdir()
    rng = np.random.default_rng(seed)

    def work(desk: Desk) -> None:
        kept = [told for told in desk.heard() if told.outcome == "ACCEPT"]
        centre = 1000 * len(kept)
        tried: list[Candidate] = [
            candidate(width=2, salt=centre + int(rng.integers(1, 10**6))) for _ in range(TRIED)
        ]
        for one, told in zip(tried, desk.trial(tried), strict=True):
            if told.passed:
                desk.submit(one)

    speed: Callable[..., float] = lambda params: 1.0 + gain if "salt" in params else 1.0  # noqa: E731
    stage = Stage(root, Host(root, speed, seed=seed), make_loop(**LOOP))
    return stage.controller().run([Scripted(work)])


@pytest.mark.slow
def test_a_controller_that_meets_only_nulls_accepts_none_in_all_but_its_share(tmp_path: Path) -> None:
    """B9: many candidates, kept by what confirmations told; the slots are all there is to learn from."""
    count = 60
    wrong = sum(bool(searched(tmp_path / str(n), n, 0.0)) for n in range(count))
    slots = sum(len(database(tmp_path / str(n)).slots()) for n in range(count))
    assert slots > 5  # some did meet unseen rows, or nothing would be shown
    assert wrong / count <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.slow
def test_a_controller_finds_a_real_gain_and_its_confirmed_figure_is_nearer_to_it(tmp_path: Path) -> None:
    count, gain = 25, 0.06
    accepted, flattery, error = 0, [], []
    for n in range(count):
        root = tmp_path / str(n)
        verdicts = searched(root, n, gain)
        accepted += bool(verdicts)
        opened = database(root)
        for one in verdicts:
            public = opened.verdict(one.candidate_id, "screen")  # what it was chosen by
            assert public is not None
            assert public.effect is not None
            assert one.effect is not None
            flattery.append(math.log(public.effect.point) - math.log1p(gain))
            error.append(math.log(one.effect.point) - math.log1p(gain))
    assert accepted / count > 0.8
    assert np.mean(flattery) > np.mean(error) + 0.003
    assert abs(np.mean(error)) < 0.01
