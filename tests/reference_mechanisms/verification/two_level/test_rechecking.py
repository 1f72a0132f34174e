"""Near ties decided by the target, everything else by level one: what that gives, and what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.calibration import ReplayDrafter
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import RequestError
from reference_mechanisms.targets.hybrid_cache import HybridCache
from reference_mechanisms.verification.two_level.rechecking import GreedyOnly, RecheckedCache, RecheckedTarget
from tests.reference_mechanisms.verification.two_level.decoding import (
    SAMPLINGS,
    decoded,
    recordings,
    requests,
    said,
)
from tests.reference_mechanisms.verification.two_level.first_levels import LyingLevel

ROWS = 6


@pytest.mark.parametrize("name", ["dense", "hybrid"])
def test_a_margin_above_every_difference_gives_the_targets_output(
    name: str, request: pytest.FixtureRequest
) -> None:
    target = request.getfixturevalue(name)
    plain, known = said(decoded(target, requests())), recordings(target, requests())
    both = RecheckedTarget(LyingLevel(target, 1.0), target, 1e9, ROWS)
    assert said(decoded(both, requests(), GreedyOnly(ReplayDrafter(5, known)))) == plain


def test_a_level_one_that_is_sure_of_random_tokens_is_believed(dense: Target) -> None:
    """Why such an arm is not called lossless."""
    both = RecheckedTarget(LyingLevel(dense, 1.0), dense, 1e-6, ROWS)
    plain = said(decoded(dense, requests()))
    assert said(decoded(both, requests())) != plain


def stepped(target: Target, margin: float) -> tuple[Tensor, RecheckedCache]:
    """Logits of greedy steps of one row with a level one that is the target, and its caches."""
    both = RecheckedTarget(LyingLevel(target, 0.0), target, margin, ROWS)
    cache, found = both.new_cache(1, 64), []
    both.forward(Rows((256, 97, 98, 99), range(4), (Segment(0, 0, 4),)), cache)
    cache.commit(0, 4)
    token = 97
    for position in range(4, 24):
        rows = Rows((token,), (position,), (Segment(0, position, 1),))
        found.append(both.logits(both.forward(rows, cache).hidden))
        cache.commit(0, 1)
        assert cache.length(0) == position + 1
        token = int(found[-1].argmax())
    return torch.cat(found), cache


@pytest.mark.parametrize(("name", "margin"), [("dense", 0.5), ("hybrid", 0.03)])
def test_levels_take_turns_at_one_sequence(name: str, margin: float, request: pytest.FixtureRequest) -> None:
    target = request.getfixturevalue(name)
    found, cache = stepped(target, margin)
    assert torch.equal(found, stepped(target, 1e9)[0])
    assert 0 < cache.rechecked < cache.steps == 20


def test_states_that_are_not_taken_over_are_seen(hybrid: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests."""
    right = stepped(hybrid, 0.03)[0]
    monkeypatch.setattr(HybridCache, "copy_states", lambda *_: None)
    assert not torch.equal(stepped(hybrid, 0.03)[0], right)


@pytest.mark.parametrize("sampling", ["sampled", "penalties"])
def test_choices_that_do_not_hang_on_the_best_logits_are_refused(dense: Target, sampling: str) -> None:
    both = RecheckedTarget(LyingLevel(dense, 0.0), dense, 0.1, ROWS)
    drafter = GreedyOnly(ReplayDrafter(5, recordings(dense, requests())))
    with pytest.raises(RequestError, match="r0: near ties of raw logits"):
        decoded(both, requests(SAMPLINGS[sampling]), drafter)
