"""What a small hybrid target is and how it is trained: one TOML file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from reference_mechanisms.errors import TargetError
from reference_mechanisms.tomlfile import read_toml


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of the config.json, by their names there."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int


class Pretraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the target learns the text."""

    steps: int
    sequences: int  # of a step
    positions: int  # of a sequence
    learning_rate: float = 3e-3  # of AdamW, at its highest
    muon_rate: float = 5e-3  # of Muon on the matrices of layers, at its highest
    warmup: float = 0.02  # share of the steps
    points: int = 60  # of the curve


class Writing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text that the trained target writes for its drafter."""

    prompts: int
    new_tokens: int = 256
    together: int = 2048  # sequences
    prompt_tokens: int = 256  # longer prompts are left out


class HybridPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole."""

    name: str
    seed: int
    sizes: Sizes
    pretraining: Pretraining
    writing: Writing


def load_hybrid_plan(path: Path) -> HybridPlan:
    """Read a plan.

    Raises:
        TargetError: naming the file and the field.
    """
    plan = read_toml(path, HybridPlan, TargetError, "reference_mechanisms/targets/training/plan.py")
    for part in (plan.sizes, plan.pretraining, plan.writing):
        for field, value in msgspec.structs.asdict(part).items():
            if value <= 0:
                raise TargetError(f"{path}: `{field}` must be above 0, got {value}")
    return plan
