"""Fields of a config.json that targets of every kind read alike.

A value of another type or out of range is refused by name: what is guessed is another model.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.rope import RopeScaling

# Where exporters write that the stored tensors are not the weights.
QUANTISED = ("quantization_config", "compression_config")


def architecture(raw: Mapping[str, Any], known: Container[str], names: str, where: str) -> str:
    """The one entry of `architectures`.

    Args:
        raw: fields of the config.json.
        known: architectures that the caller can be.
        names: all that the engine runs, for the error message.
        where: the file, for error messages.

    Raises:
        TargetError: it is none of `known`.
    """
    named = raw.get("architectures") or []
    if not isinstance(named, list) or len(named) != 1 or str(named[0]) not in known:
        raise TargetError(f"{where}: `architectures` is {named!r}; this engine runs {names}")
    return str(named[0])


def refuse_other_weights(raw: Mapping[str, Any], where: str) -> None:
    """Hold that the activation is SiLU and that the stored tensors are the weights.

    Raises:
        TargetError: naming the field.
    """
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise TargetError(f"{where}: `hidden_act` is {activation!r}; this engine knows 'silu'")
    quantised = next((name for name in QUANTISED if raw.get(name) is not None), None)
    if quantised is not None:
        raise TargetError(f"{where}: `{quantised}` is present; give an unquantised checkpoint")


def rope(raw: Mapping[str, Any], where: str) -> RopeScaling:
    """The rotation, from `rope_parameters` or the older `rope_theta` and `rope_scaling`.

    Raises:
        TargetError: naming the field.
    """
    field = "rope_parameters" if raw.get("rope_parameters") is not None else "rope_scaling"
    given = raw.get(field) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise TargetError(f"{where}: `{field}` must be one flat object for all layers, got {given!r}")
    theta = number({"rope_theta": 10000.0, **_present(raw), **_present(given)}, "rope_theta", where)
    at = f"{where}: `{field}`"
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return RopeScaling(theta)
    if kind == "linear":
        return RopeScaling(theta, "linear", factor=number(given, "factor", at))
    if kind == "llama3":
        low, high = number(given, "low_freq_factor", at), number(given, "high_freq_factor", at)
        if low >= high:
            raise TargetError(f"{at}: `low_freq_factor` = {low} must be below `high_freq_factor` = {high}")
        return RopeScaling(
            theta,
            "llama3",
            factor=number(given, "factor", at),
            low_freq_factor=low,
            high_freq_factor=high,
            original_positions=count(given, "original_max_position_embeddings", at),
        )
    raise TargetError(f"{at}: `rope_type` is {kind!r}; this engine knows default, linear, llama3")


def rotated_part(raw: Mapping[str, Any], default: float, where: str) -> float:
    """`partial_rotary_factor`: the share of each head that is rotated, in (0, 1].

    Raises:
        TargetError: naming the field.
    """
    field = "partial_rotary_factor"
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    holders = (nested if isinstance(nested, dict) else {}, raw)
    given = next((holder[field] for holder in holders if holder.get(field) is not None), default)
    found = number({field: given}, field, where)
    if found > 1:
        raise TargetError(f"{where}: `{field}` = {found} is above 1")
    return found


def count(raw: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    """A positive integer.

    Raises:
        TargetError: it is something else.
    """
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TargetError(f"{where}: `{field}` must be a positive integer, got {value!r}")
    return value


def number(raw: Mapping[str, Any], field: str, where: str) -> float:
    """A positive finite number.

    Raises:
        TargetError: it is something else.
    """
    value = raw.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise TargetError(f"{where}: `{field}` must be a positive number, got {value!r}")
    return float(value)


def switch(raw: Mapping[str, Any], field: str, where: str) -> bool:
    """True or false; false if left out.

    Raises:
        TargetError: it is something else.
    """
    value = raw.get(field, False)
    if not isinstance(value, bool):
        raise TargetError(f"{where}: `{field}` must be true or false, got {value!r}")
    return value


def _present(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}
