"""What a report says of one arm, in the words in which claims are made. Unknown stays None."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from harness.claims.records import Value
from harness.codec import Record
from harness.errors import UsageError
from harness.forced_acceptance import forced_acceptance, kind_of, settings_of
from harness.models.packaged import PACKAGED
from harness.plan import ArmSpec, Division
from harness.results import Report

ENGINES = {  # module of the backend -> engine
    "reference_mechanisms.backend": "reference",
    "harness.backends.transformers_engine": "transformers",
    "harness.backends.vllm_engine": "vllm",
    "harness.backends.vllm_managed": "vllm",
}
NO_DRAFTER = ("none", "off")
_DIGEST = re.compile(r"-[0-9a-f]{16}$")  # of the folder of a packaged model


class Facts(Record, frozen=True):
    """One arm of a report as a claim would put it."""

    target: str | None
    drafter: str | None  # None where the arm does not tell; "none" for plain decoding
    drafts: int | None
    engine: str | None
    gpu: str | None
    concurrency: int | None
    dtype: str | None
    temperature: float
    max_tokens: int
    division: Division
    forced: tuple[str, ...] = ()  # settings by which drafts are accepted otherwise than by the target

    def get(self, field: str) -> Value | None:
        """A field by its name in a claim."""
        value: Value | None = getattr(self, field)
        return value


def facts_of(report: Report, arm_name: str, gpu: str | None = None) -> Facts:
    """Read the facts of an arm.

    Args:
        report: of a finished run.
        arm_name: of the plan.
        gpu: of a server on another machine, as its owner says; used only where the report cannot tell.
    """
    plan, deployment = report.job.plan, report.job.deployment
    arm = plan.arm(arm_name)
    told = told_of(report, arm)
    speculative = speculation_of(arm, told)
    forced = forced_acceptance(settings_of(arm.params, told))
    division: Division = plan.effective_division
    if forced and division not in ("synthetic", "system"):
        division = kind_of(forced) or division
    return Facts(
        target=_target(report),
        drafter=speculative.get("method"),
        drafts=_whole(speculative.get("num_speculative_tokens")),
        engine=_engine(arm, told),
        gpu=_gpu(report, arm) or gpu,
        concurrency=_whole(arm.params.get("concurrency", plan.measure.batch)),
        dtype=_dtype(told) or deployment.target.dtype,
        temperature=plan.sampling.temperature,
        max_tokens=plan.sampling.max_tokens,
        division=division,
        forced=tuple(f"{one.where}: {one.setting}" for one in forced),
    )


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


def arm_for(report: Report, drafter: str | None, named: str | None) -> str:
    """The arm a claim is held against.

    Args:
        report: of a finished run.
        drafter: of the claim.
        named: by the user; None looks for the one that fits.

    Raises:
        UsageError: there is no such arm, or more than one would do.
    """
    names = [arm.name for arm in report.arms]
    if named is not None:
        if named not in names:
            raise UsageError(f"--arm {named!r}: the report has {', '.join(names)}")
        return named
    plan = report.job.plan
    others = [
        arm for arm in plan.arms if arm.name != plan.baseline.name and arm.kind in ("stock", "candidate")
    ]
    fitting = [
        arm
        for arm in others
        if drafter is not None
        and same_name(str(speculation_of(arm, told_of(report, arm)).get("method")), drafter)
    ]
    for found in (fitting, [arm for arm in others if arm.kind == "candidate"], others):
        if len(found) == 1:
            return found[0].name
    raise UsageError(f"--arm: which of {', '.join(names)} is the claim to be held against?")


def same_name(left: str, right: str) -> bool:
    """Whether two names of a model, drafter or GPU mean the same: case, owner and maker aside."""
    return _bare(left) == _bare(right)


def same_gpu(told: str, claimed: str) -> bool:
    """Whether the driver's name is that of the claimed model: "NVIDIA H100 80GB HBM3" is an "H100"."""
    words, wanted = _words(told), _words(claimed)
    return all(word in words for word in wanted)


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word != "nvidia"]


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.rsplit("/", 1)[-1].lower())


def _target(report: Report) -> str | None:
    spec = report.job.deployment.target
    if spec.hub is not None:
        return spec.hub
    if spec.path is not None:
        return _DIGEST.sub("", spec.path.rstrip("/").rsplit("/", 1)[-1])
    packaged = PACKAGED.get(spec.package or "")
    return packaged.name if packaged is not None else spec.package


def _engine(arm: ArmSpec, told: Mapping[str, Any]) -> str | None:
    known = ENGINES.get(arm.backend.partition(":")[0])
    engine = (told.get("told") or {}).get("engine")
    return known or (str(engine) if engine is not None else None)


def _gpu(report: Report, arm: ArmSpec) -> str | None:
    """The GPU the arm ran on: the backend's word, or this machine's for a server on it; "cpu" for none."""
    told = report.backends.get(arm.backend)
    told = told if isinstance(told, Mapping) else {}
    if told.get("gpu"):
        return str(told["gpu"])
    if str(told.get("device", "")).partition(":")[0] == "cpu":
        return "cpu"
    own = told_of(report, arm)
    url = str(own.get("url") or arm.params.get("url") or "")
    here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    if report.job.deployment.device == "remote" and not here:
        return None
    gpus = report.environment.get("gpus")
    if not gpus:
        return "cpu"
    names = {str(gpu.get("name")) for gpu in gpus}
    return names.pop() if len(names) == 1 else None


def _dtype(told: Mapping[str, Any]) -> str | None:
    settings = (told.get("told") or {}).get("settings") or {}
    quantised = settings.get("model_config.quantization") or settings.get("quantization")
    if quantised is not None:
        return str(quantised)
    dtype = settings.get("model_config.dtype") or settings.get("dtype")
    return None if dtype in (None, "auto") else str(dtype).removeprefix("torch.")


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


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
