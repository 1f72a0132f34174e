"""What the acceptance rule promises, simulated: false accepts, power, winner's curse.

Launches differ by 1 %, requests by 6 %, 40 requests a launch block, as on real engines.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from agent_loop.campaign import Rules
from harness.stats.sign_flip import sign_flip_p

LAUNCH, REQUEST, REQUESTS = 0.01, 0.06, 40
BLOCKS, SLOTS = 12, 20
LEVEL = Rules(alpha=0.05, confirm_slots=SLOTS, launch_blocks=BLOCKS).level
Floats = npt.NDArray[np.float64]


def blocks(rng: np.random.Generator, gain: float, shape: tuple[int, ...]) -> Floats:
    """Log ratio of launch blocks: the gain, noise of both launches, mean noise of the requests."""
    launch = rng.normal(0.0, LAUNCH * math.sqrt(2.0), shape)
    request = rng.normal(0.0, REQUEST * math.sqrt(2.0 / REQUESTS), shape)
    return math.log1p(gain) + launch + request


def test_a_null_candidate_is_confirmed_no_more_often_than_its_slot_allows() -> None:
    rng = np.random.default_rng(1)
    accepted = sum(sign_flip_p(list(row)) <= LEVEL for row in blocks(rng, 0.0, (1500, BLOCKS)))
    assert accepted / 1500 <= LEVEL + 3.0 * math.sqrt(LEVEL / 1500)


def test_all_slots_together_err_in_no_more_campaigns_than_alpha() -> None:
    rng = np.random.default_rng(2)
    wrong = sum(
        any(sign_flip_p(list(row)) <= LEVEL for row in blocks(rng, 0.0, (SLOTS, BLOCKS))) for _ in range(80)
    )
    assert wrong / 80 <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 80)


def test_the_demonstrations_two_slots_and_six_blocks_err_as_they_say() -> None:
    rng = np.random.default_rng(3)
    level = Rules(alpha=0.05, confirm_slots=2, launch_blocks=6).level
    accepted = sum(sign_flip_p(list(row)) <= level for row in blocks(rng, 0.0, (3000, 6)))
    assert 1 / 64 * 0.6 < accepted / 3000 < level


def test_real_gains_are_found_with_the_power_that_is_promised() -> None:
    rng = np.random.default_rng(4)
    power = {
        gain: np.mean([sign_flip_p(list(row)) <= LEVEL for row in blocks(rng, gain, (400, BLOCKS))])
        for gain in (0.02, 0.03, 0.05)
    }
    assert power[0.02] < power[0.03] <= power[0.05]
    assert power[0.03] > 0.7
    assert power[0.05] > 0.98


def test_requests_as_the_unit_would_accept_noise_of_launches() -> None:
    """Why the unit is a launch: with requests a nominal 5 % test errs far more often."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(600):
        launches = rng.normal(0.0, LAUNCH * math.sqrt(2.0), 6)
        requests = launches[:, None] + rng.normal(0.0, REQUEST * math.sqrt(2.0), (6, REQUESTS))
        z = requests.mean() / (requests.std(ddof=1) / math.sqrt(requests.size))
        wrong += z > 1.645
    assert wrong / 600 > 0.07


def test_the_best_public_figure_of_many_nulls_is_inflated_and_its_confirmation_is_not() -> None:
    rng = np.random.default_rng(6)
    public, unseen = [], []
    for _ in range(200):
        screens = blocks(rng, 0.0, (50, 2)).mean(axis=1)
        public.append(screens.max())
        unseen.append(blocks(rng, 0.0, (BLOCKS,)).mean())
    assert np.mean(public) > 0.02
    assert abs(np.mean(unseen)) < 0.002


def test_feedback_of_one_bit_keeps_an_adaptive_searcher_from_the_unseen_rows() -> None:
    """A searcher keeps what was confirmed and varies it; fresh rows each time leave nothing to fit to."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(60):
        centre = 0.0
        for _ in range(SLOTS):
            told = sign_flip_p(list(blocks(rng, 0.0, (BLOCKS,)))) <= LEVEL
            centre = rng.normal() if told else centre
            wrong += told
    assert wrong <= 60 * 0.05 + 3.0 * math.sqrt(60 * 0.05)
