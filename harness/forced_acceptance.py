"""Detects acceptance that is not the target's: forced (synthetic) or relaxed, by the settings of an engine.

Pure. Engines can accept drafts at a given rate, or by a softer test than the target's, which is fast
and is not the target's output. Only words are read here: a server that hides its settings is not
caught by them, but its tokens are, by the oracle.

Sources: the options of vLLM (`rejection_sample_method`, `synthetic_acceptance_*`), SGLang
(`SGLANG_SIMULATE_ACC_*`, `--speculative-accept-threshold-*`), TensorRT-LLM
(`TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS`, relaxed acceptance) and llama.cpp
(`--spec-synthetic-acceptance-*`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["synthetic", "relaxed"]

# In a flattened text, all in lower case with _ for -; the value follows the name after =, : or a space.
_SYNTHETIC = re.compile(
    r"rejection_sample_method[\"']?[\s=:]+[\"']?(?P<method>synthetic)"
    r"|(?P<option>synthetic_acceptance_\w+|spec_decode_acceptance_\w+|sglang_simulate_acc_\w+"
    r"|tllm_spec_decode_force_num_accepted_tokens)[\"']?[\s=:]+[\"']?(?P<value>[^\s\"',}]+)"
)
_THRESHOLD = re.compile(
    r"speculative_accept_threshold_(?:single|acc)[\"']?[\s=:]+[\"']?(?P<value>[0-9.eE+_-]+)"
)
_RELAXED = re.compile(
    r"(?P<option>use_relaxed_acceptance_for_thinking|typical_acceptance_sampler\w*|relaxed_delta|relaxed_topk)"
    r"[\"']?[\s=:]+[\"']?(?P<value>[^\s\"',}]+)"
)
_OFF = frozenset({"none", "null", "false", "0", "0.0", "off"})


class Forced(NamedTuple):
    """A setting by which drafts are accepted otherwise than by the target."""

    kind: Kind
    where: str  # path of the field that says it
    setting: str  # as read, in lower case


def forced_acceptance(settings: object, where: str = "") -> tuple[Forced, ...]:
    """Every sign of synthetic or relaxed acceptance in nested settings.

    Args:
        settings: anything made of mappings, sequences and scalars: arm parameters, an environment,
            what a server told.
        where: path put before the names of the fields.
    """
    found: dict[tuple[Kind, str], Forced] = {}
    for path, text in _lines(settings, where):
        for one in _read(path, text):
            found.setdefault((one.kind, one.setting), one)
    return tuple(found.values())


def _read(path: str, text: str) -> Iterator[Forced]:
    for match in _SYNTHETIC.finditer(text):
        if match["method"] or match["value"] not in _OFF:
            yield Forced("synthetic", path, match[0])
    for match in _THRESHOLD.finditer(text):
        if _number(match["value"]) != 1.0:
            yield Forced("relaxed", path, match[0])
    for match in _RELAXED.finditer(text):
        if match["value"] not in _OFF:
            yield Forced("relaxed", path, match[0])


def _lines(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every scalar as `name=value` under its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _lines(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _lines(item, f"{path}[{index}]")
    elif value is not None:
        yield path, f"{path}={value}".lower().replace("-", "_")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def kind_of(found: tuple[Forced, ...]) -> Kind | None:
    """The graver of what was found: synthetic before relaxed."""
    kinds = {one.kind for one in found}
    return "synthetic" if "synthetic" in kinds else "relaxed" if kinds else None


def settings_of(arm_params: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to read of one arm: its parameters, and what its server told."""
    return {"params": dict(arm_params), "told": told.get("told"), "server_args": told.get("server_args")}
