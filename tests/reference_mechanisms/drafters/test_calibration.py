from __future__ import annotations

import pytest

from reference_mechanisms.drafters.calibration import NoDrafter, NullDrafter, Recorded, ReplayDrafter
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.errors import RequestError
from reference_mechanisms.request import Request, Sampling

RECORDED: Recorded = {(1, 2): (5, 6, 7, 8, 9)}
REQUEST = Request(name="r", prompt=(1, 2), sampling=Sampling(max_tokens=5))


def test_replay_proposes_what_comes_next() -> None:
    drafter = ReplayDrafter(3, RECORDED)
    drafter.begin(0, REQUEST)
    assert drafter.propose([Wanted(0, (5,), 9)])[0].token_ids == (6, 7, 8)
    assert drafter.propose([Wanted(0, (5, 6, 7), 9)])[0].token_ids == (8, 9)
    assert drafter.propose([Wanted(0, (5,), 1)])[0].token_ids == (6,)


def test_null_proposes_a_wrong_token_at_every_position() -> None:
    drafter = NullDrafter(3, RECORDED, vocab_size=10)
    drafter.begin(0, REQUEST)
    assert drafter.propose([Wanted(0, (5, 6), 9)])[0].token_ids == (8, 9, 0)


def test_a_prompt_without_a_recording_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="other"):
        ReplayDrafter(3, RECORDED).begin(
            0, Request(name="other", prompt=(3,), sampling=Sampling(max_tokens=5))
        )


def test_no_drafter_proposes_nothing_for_everyone() -> None:
    assert [p.token_ids for p in NoDrafter().propose([Wanted(0, (1,), 5), Wanted(1, (2,), 5)])] == [(), ()]
