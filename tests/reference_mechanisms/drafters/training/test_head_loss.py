from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from reference_mechanisms.drafters.training import head_loss as module
from reference_mechanisms.drafters.training.head_loss import head_loss, taught_by


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("share", [None, 0.3, 1.0], ids=["labels", "both", "distributions"])
@pytest.mark.parametrize("chunk", [7, 64], ids=["in chunks", "in one"])
@pytest.mark.parametrize("rank", [0, 3], ids=["frozen head", "with trained columns"])
def test_loss_and_gradients_are_those_of_plain_cross_entropy(
    rank: int, chunk: int, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    rows = random(20, 8 + rank, seed=1).requires_grad_()
    frozen, trained = random(50, 8, seed=2), random(50, rank, seed=3).requires_grad_() if rank else None
    labels = torch.randint(50, (20,), generator=torch.Generator().manual_seed(4))
    weights = random(20, seed=5).abs() * (torch.arange(20) % 4 > 0)
    aim = F.one_hot(labels, 50).double()
    taught = None
    if share is not None:
        theirs = 2 * random(20, 50, seed=6)
        aim, taught = share * theirs.softmax(-1) + (1 - share) * aim, taught_by(theirs, share)
    found = head_loss(rows, frozen, labels, weights, trained, taught)
    inputs = [rows] if trained is None else [rows, trained]
    gradients = torch.autograd.grad(found.loss * 1.7, inputs)
    matrix = frozen if trained is None else torch.cat((frozen, trained), dim=1)
    logits = rows @ matrix.T
    plain = (F.cross_entropy(logits, aim, reduction="none") * weights).sum()
    torch.testing.assert_close(found.loss.double(), plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, torch.autograd.grad(plain * 1.7, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.hits, logits.argmax(-1) == labels)
