from __future__ import annotations

import torch
from torch import nn

from reference_mechanisms.drafters.training.optimizing import Mover, Optimizing, _orthogonal


def weights(seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"layers.0.mlp.weight": (6, 4), "norm.weight": (4,), "codebook": (9, 3)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def give_gradients(named: dict[str, nn.Parameter], step: int, size: float) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for weight in named.values():
        weight.grad = torch.randn(weight.shape, generator=generator) * size


def test_without_muon_it_is_adamw_behind_a_clip() -> None:
    mine, theirs = weights(), weights()
    mover = Mover(mine.items(), Optimizing(learning_rate=0.02, clip=1.0))
    adamw = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    mover.share.fill_(0.5)
    for step, size in enumerate((3.0, 0.01, 0.5, 2.0)):  # some are clipped, some not
        give_gradients(mine, step, size)
        give_gradients(theirs, step, size)
        mover.step()
        torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        adamw.step()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_muon_takes_the_matrices_of_layers_and_nothing_else() -> None:
    with_muon, without = weights(), weights()
    movers = [
        Mover(with_muon.items(), Optimizing(muon_rate=0.02)),
        Mover(without.items(), Optimizing()),
    ]
    for mover, named in zip(movers, (with_muon, without), strict=True):
        mover.share.fill_(1.0)
        give_gradients(named, 0, 0.1)
        mover.step()
    assert not torch.allclose(with_muon["layers.0.mlp.weight"], without["layers.0.mlp.weight"])
    assert torch.equal(with_muon["norm.weight"], without["norm.weight"])
    assert torch.equal(with_muon["codebook"], without["codebook"])


def test_a_muon_move_has_equal_singular_values() -> None:
    for shape in ((12, 5), (5, 12)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        found = torch.linalg.svdvals(_orthogonal(matrix))
        assert found.min() > 0.6
        assert found.max() < 1.3
        before = torch.linalg.svdvals(matrix)
        assert before.max() / before.min() > 1.5  # it had something to do
