"""A dummy target and a dummy DFlash that are small enough for any machine."""

from __future__ import annotations

import torch

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.fused_block import FusedDrafter, take_weights
from reference_mechanisms.drafters.rotation import Rope
from reference_mechanisms.targets.config import LlamaConfig
from reference_mechanisms.targets.dummy import DummyCheckpoint
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.targets.matrices import PlainMatrices
from reference_mechanisms.targets.rope import RopeScaling

VOCAB, HIDDEN, LAYERS, TAPS, BLOCK = 97, 32, 4, (0, 2), 6
DRAFTER = {"hidden": HIDDEN, "inner": 40, "heads": 4, "kv_heads": 2, "head_dim": 16}


def config(**fields: object) -> LlamaConfig:
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "layers": LAYERS,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "norm_eps": 1e-6,
        "rope": RopeScaling(10000.0),
        "max_positions": 512,
        "tied_head": False,
        "attention_bias": False,
        "mlp_bias": False,
        "qk_norm": True,
    }
    return LlamaConfig(**(sizes | fields))  # type: ignore[arg-type]


def target(device: torch.device, dtype: torch.dtype, **fields: object) -> LlamaTarget:
    source = DummyCheckpoint("small", 3, device)
    return LlamaTarget(config(**fields), source, dtype, device, PlainMatrices(source, dtype, device))


def drafter_config(
    reaches: tuple[Reach, ...] = (Reach(), Reach()), vocab: int = VOCAB, **fields: int
) -> BlockConfig:
    sizes = Sizes(norm_eps=1e-6, **(DRAFTER | fields))  # type: ignore[arg-type]
    return BlockConfig(
        sizes=sizes,
        reaches=reaches,
        rope=Rope(RopeScaling(20000.0)),
        target_hidden=sizes.hidden,
        taps=TAPS,
        block=BLOCK,
        anchor_row=False,
        mask_token=5,
        vocab_size=vocab,
    )


def drafter(of: LlamaTarget, drafts: int = BLOCK - 1) -> FusedDrafter:
    source = DummyCheckpoint("small drafter", 4, of.device)
    matrices = PlainMatrices(source, of.dtype, of.device)
    weights = take_weights(drafter_config(), source, matrices, of.dtype, of.device)
    return FusedDrafter(weights, of.embed, of.logits, drafts)
