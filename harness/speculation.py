"""What an arm drafts with, by its parameters or by its server's own words. Pure; unknown stays None."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from harness.plan import ArmSpec
from harness.results import Report

NO_DRAFTER = ("none", "off")
UNTOLD = "not told"
PLAIN = "autoregressive"


def told_of(report: Report, arm: ArmSpec) -> Mapping[str, Any]:
    """What the backend, or the server, of an arm said of it in the last launch."""
    backend = report.backends.get(arm.backend)
    if not isinstance(backend, Mapping):
        return {}
    own = backend.get("arms")
    if isinstance(own, Mapping) and isinstance(own.get(arm.name), Mapping):
        return {**own[arm.name], "engine_name": backend.get("engine")}
    return backend


def speculation_of(arm: ArmSpec, told: Mapping[str, Any]) -> dict[str, Any]:
    """`method` and `num_speculative_tokens` of an arm, as far as parameters or server tell."""
    given = _given(arm)
    if given is None:
        given = _as_told((told.get("told") or {}).get("settings") or {})
    if given is None:
        given = _spoken("none", 0) if arm.kind == "ar" else {}
    return given


def mechanism(report: Report, name: str) -> str:
    """The mechanism of an arm in a few words: "dflash, 4 drafts", "autoregressive", or "not told".

    Args:
        report: of a run.
        name: of an arm of its plan.
    """
    arm = next((arm for arm in report.job.plan.arms if arm.name == name), None)
    if arm is None:
        return UNTOLD
    found = speculation_of(arm, told_of(report, arm))
    method, drafts = found.get("method"), found.get("num_speculative_tokens")
    if method is None:
        return UNTOLD
    if method in NO_DRAFTER:
        return PLAIN
    parts = [str(method)]
    if arm.params.get("tree"):
        parts.append(f"tree of {arm.params['tree']}")
    elif drafts is not None:
        parts.append(f"{drafts} draft{'' if drafts == 1 else 's'}")
    if arm.params.get("two_level"):
        parts.append(f"two levels by {arm.params['two_level']}")
    return ", ".join(parts)


def _given(arm: ArmSpec) -> dict[str, Any] | None:
    """By the plan's own parameters; None where they say nothing."""
    if "drafter" not in arm.params:
        return _speculative_config(arm)
    name = str(arm.params["drafter"])
    return _spoken("none", 0) if name in NO_DRAFTER else _spoken(name, arm.params.get("drafts"))


def _as_told(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """By a server's own words; None where it has none."""
    if not settings:
        return None
    if settings.get("speculative_config.method") is not None:
        drafts = settings.get("speculative_config.num_speculative_tokens")
        return _spoken(str(settings["speculative_config.method"]), drafts)
    if settings.get("speculative_algorithm") is not None:
        drafts = settings.get("speculative_num_draft_tokens")
        return _spoken(str(settings["speculative_algorithm"]).lower(), drafts)
    return _spoken("none", 0)


def _spoken(method: str, drafts: object) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": drafts}


def _speculative_config(arm: ArmSpec) -> dict[str, Any] | None:
    """Of a managed server's own arguments."""
    words = shlex.split(str(arm.params.get("arguments", "")))
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--speculative-config":
            text = value or (words[index + 1] if index + 1 < len(words) else "")
            try:
                config = json.loads(text)
            except json.JSONDecodeError:
                return {}
            return config if isinstance(config, dict) else {}
    if "arguments" in arm.params:
        return {"method": "none", "num_speculative_tokens": 0}
    return None
