"""The networks of a training plan, sized after their target."""

from __future__ import annotations

from typing import Any

from reference_mechanisms.drafters.blocks import Reach, Sizes
from reference_mechanisms.drafters.dflash import BlockConfig
from reference_mechanisms.drafters.dflash2 import DFlash2Config
from reference_mechanisms.drafters.dspark import DSparkConfig
from reference_mechanisms.drafters.eagle3 import Eagle3Config
from reference_mechanisms.drafters.layouts import Config
from reference_mechanisms.drafters.rotation import Rope
from reference_mechanisms.drafters.taps import check_taps
from reference_mechanisms.drafters.training.plan import DrafterSpec
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.config import LlamaConfig
from reference_mechanisms.targets.hybrid_config import HybridConfig


def config_of(spec: DrafterSpec, target: LlamaConfig | HybridConfig, drafts: int, mask_token: int) -> Config:
    """The configuration of a drafter that shares embedding and head with its target.

    Raises:
        DrafterError: a tap the target has not, a mask token outside of the vocabulary, or channels that
            `group` does not divide.
    """
    where = f"drafter {spec.name!r}"
    taps = check_taps(spec.taps, target.layers, where)
    if not 0 <= mask_token < target.vocab_size:
        raise DrafterError(f"`mask_token` {mask_token} is not in the vocabulary of {target.vocab_size}")
    sizes = Sizes(
        hidden=target.hidden_size,
        inner=spec.inner,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        norm_eps=target.norm_eps,
    )
    shared: dict[str, Any] = {
        "sizes": sizes,
        "rope": Rope(target.rope),
        "target_hidden": target.hidden_size,
        "taps": taps,
        "vocab_size": target.vocab_size,
        "target_layers": target.layers,
    }
    if spec.kind == "eagle3":
        return Eagle3Config(
            **shared, layers=spec.layers, features=len(taps), drafts=drafts, own_head=False, norm_output=False
        )
    block = {
        **shared,
        "reaches": (Reach(),) * spec.layers,
        "mask_token": mask_token,
        "anchor_row": spec.kind == "dspark",
        "block": drafts if spec.kind == "dspark" else drafts + 1,
    }
    if spec.kind == "dspark":
        return DSparkConfig(**block, markov_rank=spec.rank, markov_kind=spec.markov)
    if spec.kind == "dflash2":
        if target.hidden_size % spec.group:
            raise DrafterError(f"{where}: `group` {spec.group} does not divide {target.hidden_size} channels")
        return DFlash2Config(
            **block, kernel=spec.kernel, group=spec.group, selector_rank=spec.rank, candidates=spec.candidates
        )
    return BlockConfig(**block)
