"""What a report says of one arm, in the words in which claims are made. Unknown stays None."""

from __future__ import annotations

import re
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
from harness.speculation import speculation_of, told_of

ENGINES = {  # module of the backend -> engine
    "reference_mechanisms.backend": "reference",
    "harness.backends.transformers_engine": "transformers",
    "harness.backends.vllm_engine": "vllm",
    "harness.backends.vllm_managed": "vllm",
}
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


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
