"""Random small drafters in float64, and whatever borrows from a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.dflash import BlockConfig, DFlash
from reference_mechanisms.drafters.dflash2 import DFlash2, DFlash2Config
from reference_mechanisms.drafters.dspark import DSpark, DSparkConfig, MarkovKind
from reference_mechanisms.drafters.eagle3 import Eagle3, Eagle3Config
from reference_mechanisms.drafters.rotation import Rope
from reference_mechanisms.drafters.trained import Ends
from reference_mechanisms.targets.rope import RopeScaling

HIDDEN, TARGET_HIDDEN, VOCAB = 16, 12, 23
SIZES = Sizes(hidden=HIDDEN, inner=24, heads=4, kv_heads=2, head_dim=8, norm_eps=1e-6)
ROPE = Rope(RopeScaling(100.0))
FULL, SLIDING = (Reach(), Reach()), (Reach(causal=True, window=5), Reach(window=7))

Network = TypeVar("Network", bound=nn.Module)


def randomised(make: Callable[[], Network], seed: int = 0) -> Network:
    """Every weight random, norms too, so that none can be left out."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    network = make()
    torch.set_default_dtype(before)
    generator = torch.Generator().manual_seed(seed)
    for tensor in network.parameters():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        tensor.data = 1 + 0.3 * noise if tensor.ndim == 1 else 0.4 * noise
    return network.eval().requires_grad_(False)


def _common(reaches: tuple[Reach, ...], block: int, vocab: int, hidden: int) -> dict[str, object]:
    return {
        "sizes": SIZES,
        "reaches": reaches,
        "rope": ROPE,
        "target_hidden": hidden,
        "taps": (0, 1),
        "block": block,
        "mask_token": vocab - 1,
        "vocab_size": vocab,
    }


def dflash(
    reaches: tuple[Reach, ...] = FULL,
    block: int = 4,
    vocab: int = VOCAB,
    hidden: int = TARGET_HIDDEN,
    *,
    anchor_row: bool = False,
    own: bool = False,
) -> DFlash:
    config = BlockConfig(
        **_common(reaches, block, vocab, hidden),  # type: ignore[arg-type]
        anchor_row=anchor_row,
        own_embedding=own,
        own_head=own,
    )
    return randomised(lambda: DFlash(config))


def dflash2(
    reaches: tuple[Reach, ...] = FULL,
    block: int = 4,
    vocab: int = VOCAB,
    hidden: int = TARGET_HIDDEN,
    *,
    candidates: int = 4,
    own: bool = False,
) -> DFlash2:
    config = DFlash2Config(
        **_common(reaches, block, vocab, hidden),  # type: ignore[arg-type]
        anchor_row=False,
        kernel=2,
        group=4,
        selector_rank=6,
        candidates=candidates,
        own_embedding=own,
        own_head=own,
    )
    return randomised(lambda: DFlash2(config))


def dspark(
    reaches: tuple[Reach, ...] = FULL,
    block: int = 3,
    vocab: int = VOCAB,
    hidden: int = TARGET_HIDDEN,
    *,
    kind: MarkovKind = "vanilla",
    anchor_row: bool = True,
    own: bool = False,
) -> DSpark:
    config = DSparkConfig(
        **_common(reaches, block, vocab, hidden),  # type: ignore[arg-type]
        anchor_row=anchor_row,
        markov_rank=5,
        markov_kind=kind,
        own_embedding=own,
        own_head=own,
    )
    return randomised(lambda: DSpark(config))


def eagle3(
    vocab: int = VOCAB,
    hidden: int = TARGET_HIDDEN,
    *,
    layers: int = 1,
    draft_vocab: int | None = None,
    own: bool = True,
    **flags: bool,
) -> Eagle3:
    config = Eagle3Config(
        sizes=SIZES,
        layers=layers,
        rope=ROPE,
        target_hidden=hidden,
        features=2,
        taps=(0, 1),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        drafts=3,
        own_embedding=own,
        own_head=True,
        **flags,
    )
    return randomised(lambda: Eagle3(config))


def ends(vocab: int = VOCAB, seed: int = 9) -> Ends:
    """Embedding and head of a target as wide as the drafter."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(vocab, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(vocab, HIDDEN, generator=generator, dtype=torch.float64) * 0.4
    return Ends(lambda ids: table[ids], lambda rows: rows @ head.T)


def random_taps(rows: int, hidden: int = TARGET_HIDDEN, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 2 * hidden, generator=generator, dtype=torch.float64)
