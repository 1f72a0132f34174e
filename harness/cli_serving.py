"""`specpilot-harness serve` on the reference engine: the other half of the composition root, for serving."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.plan import ArmSpec, Deployment
    from reference_mechanisms.batching.protocol import BatchEngine
    from reference_mechanisms.serving.commands import Wanted
    from reference_mechanisms.serving.server import Opened

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]
RECORDING = ("null", "replay")  # drafters that draft what was recorded of each prompt beforehand


def add_serve(commands: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add the command `serve`.

    Args:
        commands: of the command line.
        guard: turns the errors of a mechanism's command into ours.
    """
    from reference_mechanisms.serving.commands import register  # noqa: PLC0415 - commands load what they need

    register(commands, lambda run: guard(_with_usage_errors(run)), open_wanted)


def open_wanted(wanted: Wanted) -> Opened:
    """The deployment that `serve` names, with its mechanism, on the reference engine.

    Raises:
        UsageError: deployment, plan or arm is unknown, or cannot be served.
        ModelError: the target cannot be used.
    """
    from harness.plan import ArmSpec, load_deployment, load_job  # noqa: PLC0415

    if wanted.params is not None:
        arm = ArmSpec(name="served", kind="candidate", backend="", params=dict(wanted.params))
    else:
        arms = load_job(wanted.plan).plan.arms
        found = next((one for one in arms if one.name == wanted.arm), None)
        if found is None:
            names = ", ".join(one.name for one in arms)
            raise UsageError(f"--arm: {wanted.plan} has no arm {wanted.arm!r}; it has {names}")
        arm = found
    return open_arm(load_deployment(wanted.deployment), arm, wanted.served_name, wanted.lanes)


def open_arm(deployment: Deployment, arm: ArmSpec, name: str | None = None, lanes: int = 1) -> Opened:
    """A deployment and an arm of the reference engine, ready to be loaded and served.

    Args:
        deployment: target, device, context.
        arm: its `params`.
        name: what clients call the model; None takes the deployment's.
        lanes: requests that decode at a time.

    Raises:
        UsageError: the arm cannot be served.
        ModelError: the target cannot be used.
    """
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.tokenize import PromptTokenizer  # noqa: PLC0415
    from reference_mechanisms.serving.app import About  # noqa: PLC0415
    from reference_mechanisms.serving.asking import Served  # noqa: PLC0415
    from reference_mechanisms.serving.server import Opened  # noqa: PLC0415
    from reference_mechanisms.serving.text import HuggingFaceText  # noqa: PLC0415

    if arm.params.get("drafter") in RECORDING:
        raise UsageError(
            f"--mechanism: {arm.params['drafter']!r} drafts what was recorded of each prompt beforehand, "
            "which a server cannot do; choose another"
        )
    if lanes > 1 and "batch_slots" in arm.params:
        raise UsageError("--lanes and `batch_slots` both say how many decode at a time; leave one out")
    if lanes > 1 and "two_level" in arm.params:
        raise UsageError("--lanes above 1 does not go with `two_level`; leave one of them out")
    if deployment.device == "remote":
        raise UsageError(
            f"deployment {deployment.name}: `device` is 'remote', but `serve` runs the target here"
        )
    model = resolve_model(deployment.target)
    served = Served(
        name=name or deployment.name,
        vocab_size=model.vocab_size,
        context_length=deployment.context_length,
        eos_token_ids=model.eos_token_ids,
    )
    version = metadata.version("specpilot-harness")
    arm = _with_lanes(arm, lanes)
    about = About(served, str(model.path), version, _settings(deployment, arm, version))
    text = HuggingFaceText(PromptTokenizer(model.path).inner)
    return Opened(about, text, lambda: _engine(deployment, arm))


def _with_usage_errors(run: Run) -> Run:
    """What the command line got wrong, as our own error."""
    from reference_mechanisms.serving.errors import ChoiceError  # noqa: PLC0415

    def guarded(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except ChoiceError as error:
            raise UsageError(str(error)) from None

    return guarded


def _with_lanes(arm: ArmSpec, lanes: int) -> ArmSpec:
    """The arm with as many slots as requests may decode at a time."""
    from msgspec.structs import replace  # noqa: PLC0415

    return arm if lanes == 1 else replace(arm, params={**arm.params, "batch_slots": lanes})


def _slots(arm: ArmSpec) -> int:
    """Requests that decode at a time."""
    from reference_mechanisms.arms import ParameterError, parse_settings  # noqa: PLC0415

    try:
        batching = parse_settings(arm.params).batching
    except ParameterError as error:
        raise UsageError(f"--mechanism: {error}") from None
    return 1 if batching is None else batching.slots


def _engine(deployment: Deployment, arm: ArmSpec) -> BatchEngine:
    from reference_mechanisms.backend import open_session  # noqa: PLC0415
    from reference_mechanisms.batching.one_by_one import OneByOne  # noqa: PLC0415

    session = open_session(deployment, [arm])
    batcher = session.batcher(arm.name)
    if batcher is not None:
        return batcher
    return OneByOne(lambda request: session.events(arm.name, [request]), session.close)


def _settings(deployment: Deployment, arm: ArmSpec, version: str) -> dict[str, Any]:
    """What `/server_info` tells."""
    drafter = arm.params.get("drafter")
    speculation = {
        "speculative_config.method": None if drafter == "none" else drafter,
        "speculative_config.num_speculative_tokens": arm.params.get("drafts"),
        "speculative_config.rejection_sample_method": None if drafter == "none" else "exact",
    }
    return {
        "engine": "specpilot-harness",
        "version": version,
        "sampling_defaults": "openai",
        "settings": {
            "model_config.dtype": deployment.target.dtype,
            "model_config.max_model_len": deployment.context_length,
            "cache_config.enable_prefix_caching": False,
            "scheduler_config.max_num_seqs": _slots(arm),
            **{key: value for key, value in speculation.items() if value is not None},
        },
    }
