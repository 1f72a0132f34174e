"""Replayed drafts and the best column of each row, in torch and in Triton alike."""

from __future__ import annotations

import os

import pytest
import torch

from reference_mechanisms.kernels.step import twin
from reference_mechanisms.kernels.step.replaying import Replay, new_recording
from reference_mechanisms.kernels.step.replaying import replay as plain_replay

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton and the kernels are loaded
pytest.importorskip("triton", reason="no Triton here")
from reference_mechanisms.kernels.step import fused_settling  # noqa: E402

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
VOCAB, DRAFTS = 50, 5


@pytest.mark.parametrize("replay", [plain_replay, fused_settling.replay], ids=["torch", "triton"])
def test_so_many_tokens_are_right_as_the_step_asks_for(replay: Replay) -> None:
    recording = new_recording(20, 4, DEVICE)
    recording.tokens.copy_(torch.arange(20) * 7 % VOCAB)
    recording.counts.copy_(torch.tensor([0, 5, 2, 9]))
    out = torch.zeros(DRAFTS, dtype=torch.int64, device=DEVICE)
    start = 3
    for turn, count in enumerate((0, 5, 2, 9, 9)):  # behind the last step its count stays
        replay(torch.zeros_like(out), torch.tensor([start], device=DEVICE), recording, VOCAB, out)
        known = [7 * min(start + 1 + n, 19) % VOCAB for n in range(DRAFTS)]
        right = [found == token for found, token in zip(out.tolist(), known, strict=True)]
        assert right == [n < count for n in range(DRAFTS)]
        assert all(0 <= token < VOCAB for token in out.tolist())
        assert recording.turn.tolist() == [turn + 1]
        start += 3


def test_the_best_column_is_the_first_of_the_largest() -> None:
    logits = torch.randn((4, 5000), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    logits[1, [4999, 2048, 2047]] = 9.0
    found = fused_settling.best(logits)
    assert torch.equal(found, twin.best(logits))
    assert found[1] == 2047
