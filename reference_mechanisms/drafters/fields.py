"""Typed reading of a drafter's config.json: every error names the file and the field."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Self

from reference_mechanisms.drafters.blocks import Sizes
from reference_mechanisms.drafters.rotation import Rope, Yarn
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.rope import RopeScaling

# Fields that change the network, with the only values this one has.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "quantization_config": (),
    "compression_config": (),
    "is_neox_style": (True,),
    "partial_rotary_factor": (1, 1.0),
    "attention_value_scale": (1, 1.0),
    "logit_scale": (1, 1.0),
    "input_embedding_scale": (1, 1.0),
    "output_multiplier": (1, 1.0),
    "final_logit_softcapping": (),
    "aux_hidden_norms": (False,),
    "use_aux_hidden_state": (True,),
    "use_swa": (False,),
    "attention_mode": ("gqa",),
    "shift_label": (False,),
}
ROPE_FIELDS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "partial_rotary_factor",
}


class Fields:
    """One JSON object of a config.json; a null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        """`where` names the file, and the object inside it."""
        self.where = where
        self._raw = {name: value for name, value in raw.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        """Whether the field is there."""
        return name in self._raw

    def inside(self, name: str) -> Self:
        """A nested object; an absent one is empty."""
        value = self._raw.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return type(self)(value, f"{self.where}: `{name}`")

    def first(self, name: str) -> Self:
        """The first object of a list of them; that of an absent list is empty."""
        value = self._raw.get(name, [{}])
        if not isinstance(value, list) or not value or not isinstance(value[0], dict):
            raise self.wrong(name, "a list of objects")
        return type(self)(value[0], f"{self.where}: `{name}`")

    def wrong(self, name: str, wanted: str) -> DrafterError:
        """The error of a field that is not what it must be."""
        return DrafterError(f"{self.where}: `{name}` must be {wanted}, got {self._raw.get(name)!r}")

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """An integer of at least `least`; required without a default."""
        value = self._raw.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"an integer of at least {least}")
        return value

    def maybe_count(self, name: str) -> int | None:
        """An integer of at least 1, or None where the field is absent."""
        return self.count(name) if name in self else None

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; required without a default."""
        value = self._raw.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(name, "a positive number")
        return float(value)

    def switch(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._raw.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, known: Collection[str], default: str | None = None) -> str:
        """One of some names."""
        value = self._raw.get(name, default)
        if value not in known:
            raise self.wrong(name, f"one of {', '.join(sorted(known))}")
        return str(value)

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self._raw.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers, not empty."""
        value = self._raw.get(name)
        if not isinstance(value, list) or not value or any(type(one) is not int for one in value):
            raise self.wrong(name, "a list of integers")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of names, or None where the field is absent."""
        value = self._raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of names")
        return tuple(value)

    def refuse_strangers(self, known: Collection[str]) -> None:
        """Hold that no other field is here.

        Raises:
            DrafterError: naming the first.
        """
        strange = sorted(set(self._raw) - set(known))
        if strange:
            raise DrafterError(
                f"{self.where}: `{strange[0]}` is unknown; this layout has {', '.join(sorted(known))}"
            )

    def refuse_other_networks(self) -> None:
        """Hold that no field asks for something these networks do not have.

        Raises:
            DrafterError: naming the field.
        """
        for name, values in NEUTRAL.items():
            if name in self and self._raw[name] not in values:
                only = f"knows {values[0]!r} only" if values else "does not know it"
                raise DrafterError(f"{self.where}: `{name}` is {self._raw[name]!r}; this network {only}")


def sizes_of(fields: Fields, *, qk_norm: bool) -> Sizes:
    """Sizes of a decoder layer.

    Raises:
        DrafterError: a field is missing or does not fit.
    """
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    kv_heads = fields.count("num_key_value_heads", heads)
    head_dim = fields.count("head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of `num_attention_heads` = {heads}")
    if head_dim % 2:
        raise fields.wrong("head_dim", "even, because rotation needs pairs")
    return Sizes(
        hidden=hidden,
        inner=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps"),
        qk_norm=qk_norm,
        attention_bias=fields.switch("attention_bias"),
    )


def rope_of(fields: Fields) -> Rope:
    """Rotation of the drafter; its base must be stated, a wrong guess only costs acceptance unseen.

    Raises:
        DrafterError: a field is missing or unknown.
    """
    given = fields.inside("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    given.refuse_strangers(ROPE_FIELDS)
    given.refuse_other_networks()
    theta = (given if "rope_theta" in given else fields).number("rope_theta")
    named = "type" if "rope_type" not in given and "type" in given else "rope_type"
    kind = given.choice(named, ("default", "linear", "llama3", "yarn"), "default")
    if kind == "default":
        return Rope(RopeScaling(theta))
    factor = given.number("factor")
    if kind == "linear":
        return Rope(RopeScaling(theta, "linear", factor=factor))
    original = given.count("original_max_position_embeddings")
    if kind == "yarn":
        return Rope(
            RopeScaling(theta),
            Yarn(
                factor,
                original,
                beta_fast=given.number("beta_fast", 32.0),
                beta_slow=given.number("beta_slow", 1.0),
                attention_factor=given.number("attention_factor") if "attention_factor" in given else None,
            ),
        )
    low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
    if low >= high:
        raise given.wrong("low_freq_factor", f"below `high_freq_factor` = {high}")
    return Rope(RopeScaling(theta, "llama3", factor, low, high, original))
