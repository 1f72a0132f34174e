"""Drafts that are verified in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from reference_mechanisms.drafters.calibration import ReplayDrafter
from reference_mechanisms.drafters.protocol import Proposal, Wanted
from reference_mechanisms.engine.target import Target
from reference_mechanisms.verification.two_level.staging import StagingDrafter, beginning, behind
from tests.harness.tiny import VOCAB
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.verification.two_level.decoding import (
    SAMPLINGS,
    decoded,
    recordings,
    requests,
    said,
    steps,
)

#        1 - 3 - 5
#      /   \ 4
#  root - 2
TREE = Proposal((10, 20, 30, 40, 50), parents=(-1, -1, 0, 0, 2))


class Counting(ReplayDrafter):
    asked = 0

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        self.asked += len(wanted)
        return super().propose(wanted)


@pytest.mark.parametrize("sampling", ["sampled", "stop token"])
def test_the_output_is_the_targets(dense: Target, sampling: str) -> None:
    batch = requests(SAMPLINGS[sampling])
    plain, known = said(decoded(dense, batch)), recordings(dense, requests())
    for first in (2, 5):
        for inner in (ReplayDrafter(5, known), RandomTrees(known, VOCAB, first)):
            assert said(decoded(dense, batch, StagingDrafter(inner, first))) == plain


def test_a_draft_that_is_right_is_made_once_for_all_its_pieces(dense: Target) -> None:
    (one,) = requests()[:1]
    inner = Counting(5, recordings(dense, [one]))
    events = steps(decoded(dense, [one], StagingDrafter(inner, 2)))
    # 11 tokens: pieces of 2 + 1 and 2 + 1 of a draft of 5, whose last own token leaves it.
    assert [event.drafted for event in events] == [2, 2, 2, 1]
    assert [event.accepted for event in events] == [2, 2, 2, 1]
    assert inner.asked == 2


def test_the_rest_of_a_chain_stands_behind_what_was_emitted() -> None:
    chain = Proposal((1, 2, 3, 4))
    assert behind(chain, (1, 2)) == Proposal((3, 4))
    assert behind(chain, (1, 3)) == behind(chain, (1, 2, 3, 4, 5)) == Proposal(())
    assert beginning(chain, 3) == Proposal((1, 2, 3))


def test_the_rest_of_a_tree_is_the_subtree_there() -> None:
    assert behind(TREE, (10,)) == Proposal((30, 40, 50), parents=(-1, -1, 0))
    assert behind(TREE, (10, 30)) == Proposal((50,), parents=(-1,))
    assert behind(TREE, (20,)) == Proposal((), parents=())
    assert behind(TREE, (10, 50)) == Proposal(())
    assert beginning(TREE, 3) == Proposal((10, 20, 30), parents=(-1, -1, 0))
