"""The end of a step: what is accepted and where the next step stands, in torch and in Triton alike."""

from __future__ import annotations

import os
import random

import pytest
import torch

from reference_mechanisms.kernels.step.settling import Settle, Turn, new_turn
from reference_mechanisms.kernels.step.settling import settle as plain_settle
from reference_mechanisms.verification.chain import verify_choices

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step import fused_settling  # noqa: E402

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
WAYS = {"torch": plain_settle, "triton": fused_settling.settle}
VOCAB, DRAFTS = 5000, 6  # more columns than one program takes


@pytest.fixture(params=list(WAYS))
def settle(request: pytest.FixtureRequest) -> Settle:
    return WAYS[request.param]


def turn_of(draft: list[int], rows: int, *, start: int = 40, limit: int = 100) -> Turn:
    turn = new_turn(1, rows, DEVICE)
    padding = [0] * (rows - 1 - len(draft))
    turn.state.copy_(torch.tensor([[17, *draft, *padding, start, len(draft), limit]]))
    return turn


def logits_of(choices: list[int], seed: int = 0) -> torch.Tensor:
    made = torch.randn((len(choices), VOCAB), generator=torch.Generator().manual_seed(seed))
    made[range(len(choices)), choices] = 9.0
    return made.to(DEVICE)


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_the_longest_right_prefix_is_accepted(settle: Settle, rows: int) -> None:
    rng = random.Random(rows)  # noqa: S311 - test data
    for _ in range(12):
        choices = [rng.randrange(VOCAB) for _ in range(rows)]
        right, drafted = rng.randrange(rows), rng.randrange(rows)
        draft = [choices[n] if n < right else (choices[n] + 1) % VOCAB for n in range(drafted)]
        turn = turn_of(draft, rows)
        settle(logits_of(choices), turn, DRAFTS)
        verified = verify_choices(draft, choices[: drafted + 1])
        assert turn.accepted.tolist() == [verified.accepted]
        assert turn.before.tolist() == [40]
        assert turn.choices.tolist() == [choices]
        report = turn.report[0].tolist()
        padded = [17, *draft, *[0] * (rows - 1 - drafted)]
        assert report == [40, drafted, *padded, *choices, *[1] * rows]
        left = 100 - verified.accepted - 1
        moved = turn.state[0].tolist()
        assert moved[0] == verified.next_token
        assert moved[1:rows] == padded[1:]
        assert moved[rows:] == [40 + verified.accepted + 1, min(left, DRAFTS), left]


def test_the_last_tokens_are_not_drafted_past(settle: Settle) -> None:
    turn = turn_of([], 4, limit=3)
    settle(logits_of([1, 2, 3, 4]), turn, DRAFTS)
    assert turn.state[0, 5:].tolist() == [2, 2]
    turn = turn_of([], 4, limit=0)
    settle(logits_of([1, 2, 3, 4]), turn, DRAFTS)
    assert turn.state[0, 5:].tolist() == [0, -1]


def test_the_first_of_equals_is_chosen_wherever_it_lies(settle: Settle) -> None:
    logits = torch.full((3, VOCAB), -2.0, device=DEVICE)
    logits[0, [4999, 3000]] = 1.0
    logits[1, [2047, 2048]] = 1.0
    logits[2, 4999] = -1.0
    turn = turn_of([], 3)
    settle(logits, turn, DRAFTS)
    assert turn.choices.tolist() == [[3000, 2047, 4999]]


def test_a_row_without_a_number_is_told(settle: Settle) -> None:
    logits = logits_of([5, 6, 7, 8])
    logits[1, 4000] = torch.nan
    logits[2, 0] = torch.inf
    logits[3] = -torch.inf
    turn = turn_of([], 4)
    settle(logits, turn, DRAFTS)
    assert turn.report[0, 10:].tolist() == [1, 0, 0, 0]


def test_requests_do_not_notice_each_other(settle: Settle) -> None:
    rows, made = 3, []
    for seed in range(4):
        choices = [100 * seed + 1, 100 * seed + 2, 100 * seed + 3]
        turn = turn_of(choices[:seed] if seed < 3 else [9, 9], rows, start=seed)
        made.append((turn, logits_of(choices, seed)))
    together = Turn(*(torch.cat(parts) for parts in zip(*(turn for turn, _ in made), strict=True)))
    settle(torch.cat([logits for _, logits in made]), together, DRAFTS)
    for number, (turn, logits) in enumerate(made):
        settle(logits, turn, DRAFTS)
        for found, alone in zip(together, turn, strict=True):
            assert torch.equal(found[number], alone[0])


@pytest.mark.parametrize("drafted", [0, 1, 3])
def test_padding_that_happens_to_be_right_is_not_accepted(settle: Settle, drafted: int) -> None:
    choices = [4, 0, 0, 0, 0, 0]
    turn = turn_of([4, 0, 0][:drafted], 6)
    if drafted == 0:
        turn.state[0, 1] = 4
    settle(logits_of(choices), turn, DRAFTS)
    assert turn.accepted.tolist() == [drafted]
    assert turn.state[0, 0] == choices[drafted]
