"""What a report says of each trained drafter, in the words of a model card. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.report.drafting import macro_mean
from harness.report.summary import EMBEDDED, sets_of, trained_arms
from harness.results import ArmResult, Report


class Figures(NamedTuple):
    """Of one drafter."""

    drafter: str
    target_sha256: str
    weights_sha256: str  # of the drafter's files, as the run had them
    measured: dict[str, Any]  # fields of `measured` in a card


def card_figures(report: Report, report_sha256: str, where: str) -> tuple[Figures, ...]:
    """The `measured` part of the card of each trained drafter, in the order of the plan.

    Args:
        report: of a valid run.
        report_sha256: of its report.json.
        where: path of its folder, as the card shall tell it.

    Raises:
        UsageError: the run is invalid, no arm has a trained drafter, or an old report does not tell
            acceptance on each set or the weights that drafted.
    """
    if report.status != "valid":
        raise UsageError(f"report {report.name} is invalid ({'; '.join(report.reasons)}); run it again")
    arms = trained_arms(report)
    if not arms:
        raise UsageError(f"report {report.name}: no arm has a drafter with weights; nothing for a card")
    weights: dict[str, str] = {}
    for told in report.backends.values():
        weights |= told.get("checkpoint_sha256") or {}
    missing = [arm.name for arm in arms.values() if arm.name not in weights]
    if missing:
        raise UsageError(
            f"report {report.name}: `checkpoint_sha256` of {', '.join(missing)} is missing; "
            "run the plan again"
        )
    return tuple(
        Figures(
            drafter=name,
            target_sha256=str(report.models["target"].get("weights_sha256")),
            weights_sha256=weights[arm.name],
            measured=_measured(report, arm, report_sha256, where),
        )
        for name, arm in arms.items()
    )


def _measured(report: Report, arm: ArmResult, report_sha256: str, where: str) -> dict[str, Any]:
    sampling, judged = report.job.plan.sampling, arm.losslessness
    beside = [drawn.name for drawn in report.sets if drawn.source == EMBEDDED]
    found = {one.set_name: one for one in sets_of(arm)}
    return {
        "report": where,
        "report_sha256": report_sha256,
        "plan": report.plan.name,
        "plan_hash": report.plan.hash,
        "machine": _machine(report),
        "date": report.created_at[:10],
        "command": f"specpilot-harness run {report.plan.name} --out {where} --evals-dir DIR",
        "drafts": max(len(one.survival) for one in found.values()),
        "max_tokens": sampling.max_tokens,
        "stock_verdict": "not-judged" if judged is None else judged.stock_verdict,
        "self_exact": None if judged is None else judged.self_exact,
        "sets": {
            name: {
                "prompts": one.responses,
                "degenerate": one.degenerate,
                "tau": one.length,
                "tau_with_degenerate": one.length_with_degenerate,
                "survival": list(one.survival),
                "conditional": list(one.conditional),
            }
            for name in (drawn.name for drawn in report.sets)
            if (one := found.get(name)) is not None
        },
        "mean": macro_mean([one.length for name, one in found.items() if name not in beside]),
        "embedded": beside,
    }


def _machine(report: Report) -> str:
    """The device that decoded, by its name."""
    devices = {str(told.get("device", "")) for told in report.backends.values()}
    gpus = report.environment.get("gpus") or []
    if gpus and any(device.startswith("cuda") for device in devices):
        return str(gpus[0]["name"])
    cpu = report.environment["cpu"]
    cores = cpu.get("cores_usable")
    return str(cpu["model"]) if cores is None else f"{cpu['model']}, {cores} cores"
