"""The reference engine as a backend of the harness: the one module here that knows the harness."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import torch

from harness.errors import BackendError, ModelError, UsageError
from harness.models import ModelFolder, resolve_model
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, StepEvent
from harness.tokenize import PromptTokenizer
from reference_mechanisms.arm_drafters import (
    about,
    findings,
    fitted,
    folder_of,
    load_drafters,
    weights_sha256,
)
from reference_mechanisms.arm_figures import Sample, write_arm_figures
from reference_mechanisms.arm_fitting import Deployed, hold_session
from reference_mechanisms.arm_steps import budgeted, lanes_for, lanes_of, probed, shapes_of, verification_of
from reference_mechanisms.arm_targets import (
    Loaded,
    dense_trees,
    hold_step_costs,
    load_session_target,
    tree_figures,
    two_levels,
)
from reference_mechanisms.arms import ArmSettings, ParameterError, parse_settings
from reference_mechanisms.batching.measuring.running import Named, Watch, measure
from reference_mechanisms.batching.measuring.steps import Load
from reference_mechanisms.batching.measuring.subjects import loaded_subject
from reference_mechanisms.batching.opening import Runners, decoded, hold_buckets, open_batcher, ration_of
from reference_mechanisms.batching.protocol import BatchEngine
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.detectors import Finding
from reference_mechanisms.drafters.doctor import answered
from reference_mechanisms.drafters.doctor import examine as doctor
from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.shipped import ROOT
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.lanes import Lanes
from reference_mechanisms.engine.probe import Probe, probe
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.target import Target
from reference_mechanisms.errors import DrafterError, MechanismError, RequestError, TargetError
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.weight12.errors import WeightError

Wrap = Callable[[Drafter], Drafter]

RECORDING_BATCH = 8  # requests recorded together


class ReferenceSession:
    """Arms that share one target in this process."""

    def __init__(
        self,
        deployment: Deployment,
        model: ModelFolder,
        arms: Mapping[str, ArmSettings],
        rules: Mapping[str, Rules],
        wrap: Mapping[str, Wrap],
        shipped: Path,
    ) -> None:
        """Load the target and the drafters, and probe the target.

        Raises:
            ModelError: the model folder cannot be used.
            UsageError: the drafter of an arm cannot be used.
        """
        self._deployment = deployment
        self._wrap = dict(wrap)
        dtype: torch.dtype = getattr(torch, deployment.target.dtype)
        tokenizer = PromptTokenizer(model.path)
        with _as_usage_errors():
            self._folders = {
                name: folder_of(name, one, model.sha256, shipped) for name, one in arms.items() if one.trained
            }
        device, weights = torch.device(deployment.device), deployment.weights_format
        deployed = Deployed(deployment.name, model.path, weights, dtype, device, deployment.context_length)
        try:
            hold_session(deployed, arms, self._folders.values())
            self._target: Target = load_session_target(model.path, weights, dtype, device)
        except (TargetError, WeightError) as error:
            raise ModelError(str(error)) from None
        with _as_usage_errors():
            self._bound = load_drafters(self._folders, self._target)
            self._arms = {name: fitted(name, one, self._bound.get(name)) for name, one in arms.items()}

        plain = None if deployment.weights_format == "weight12" else model.path
        self._loaded = Loaded(
            self._target, plain, model.sha256 or "", model.eos_token_ids, deployment.context_length
        )
        taps = {name: bound.taps for name, bound in self._bound.items()}
        with _as_usage_errors():
            self._dense = dense_trees(self._arms, self._target)
            self._digests = {name: weights_sha256(one.path) for name, one in self._folders.items()}
            self._tree_figures = tree_figures(self._arms, self._loaded, self._digests)
            self._arms = budgeted(self._arms, self._tree_figures, stepped=device.type == "cuda")
            self._two_level = two_levels(self._arms, self._loaded, self._dense, taps)
            hold_buckets(self._arms)
            hold_step_costs(self._arms, self._loaded, deployment.weights_format)
            self._lanes = lanes_of(self._arms, self._target, deployment.context_length)
        self.runners = Runners()

        def decoder(name: str | None, lanes: Lanes | None, nodes: int = 0) -> Decoder:
            target = self._dense.get(name or "", self._target)
            target = self._two_level[name].target if name in self._two_level else target
            own, capacity = None if name is None else rules.get(name), deployment.context_length
            return Decoder(target, model.eos_token_ids, tokenizer.decode, capacity, own, lanes, nodes)

        self._decoders = {}
        for name, one in self._arms.items():
            with _as_usage_errors(), about(name):
                lanes = lanes_for(self._lanes, one)
            self._decoders[name] = decoder(name, lanes, one.tree or 0)
        self._recorder = decoder(None, self._lanes)
        self._probe: Probe = probe(self._target, shapes_of(self._arms), batch=2)
        self._single_probe = probed(self._lanes, self._arms)
        self._recorded: dict[tuple[int, ...], tuple[int, ...]] = {}

    def describe(self) -> dict[str, Any]:
        """Engine, device, kernels, what the probe found, and the drafter of each arm."""
        found, singles = self._probe, self._single_probe
        shapes = ", ".join(map(str, found.shapes))
        gpu = torch.cuda.get_device_name() if self._deployment.device == "cuda" else None
        return {
            "engine": "reference",
            "version": metadata.version("specpilot-harness"),
            "device": str(self._target.device),
            "gpu": gpu,
            "dtype": str(self._target.dtype).removeprefix("torch."),
            "linear_kernel": self._target.linear_kernel,
            "steps": {name: self._decoders[name].steps for name in self._arms},
            "threads": torch.get_num_threads(),
            # Random numbers hang on seed, prompt and position alone; a drawn draft, though, hangs on
            # the drafter's logits, which may round otherwise in another batch.
            "seeded": not any(settings.sampled for settings in self._arms.values()),
            "row_invariant": (singles or found).row_invariant,
            "probe": (
                f"logits of {found.positions} positions in shapes of {shapes} rows and "
                f"in a batch of {found.batch}, against one-token steps: largest difference "
                f"{found.largest_difference:g}"
            ),
            "probe_of_single_requests": singles
            and (
                f"logits of {singles.positions} positions as drafts in steps of {singles.shapes[-1]} rows, "
                f"against steps of {singles.shapes[0]} rows without drafts: largest difference "
                f"{singles.largest_difference:g}"
            ),
            "verification": verification_of(self._arms),
            "two_level": {name: one.about for name, one in self._two_level.items()},
            "not_bit_exact": dict.fromkeys(self._dense, "recurrent layers in the WY form"),
            "drafters": {name: settings.drafter for name, settings in self._arms.items()},
            "checkpoints": {name: one.name for name, one in self._folders.items()},
            "drafter_findings": {name: findings(bound, self._target) for name, bound in self._bound.items()},
            "checkpoint_sha256": self._digests,
            "tree_figures": {name: str(self._arms[name].tree_figures) for name in self._tree_figures},
        }

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Record the target's own continuation of every prompt, for the arms that draft from it.

        Raises:
            BackendError: a request cannot be served.
        """
        if not self._arms[arm].records:
            return
        missing = [r for r in map(_request, requests) if r.prompt not in self._recorded]
        with _as_backend_errors():
            for start in range(0, len(missing), RECORDING_BATCH):
                chosen = missing[start : start + RECORDING_BATCH]
                outputs = self._recorder.continuation(chosen)
                self._recorded |= {r.prompt: o for r, o in zip(chosen, outputs, strict=True)}

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """Decode a batch with an arm's drafter.

        Raises:
            BackendError: a request cannot be served.
        """
        with _as_backend_errors():
            for event in self.events(arm, [_request(r) for r in requests]):
                yield _step_event(event)

    def events(self, arm: str, requests: Sequence[Request]) -> Generator[Event, None, None]:
        """What `stream` yields, in the engine's own words; closing it stops the batch.

        Raises:
            RequestError: a request cannot be served.
        """
        ration = ration_of(self._arms[arm], self._bound.get(arm))
        decoder, drafter, settings = self.parts(arm, len(requests), ration)
        yield from decoded(decoder, drafter, ration, settings, requests, self.runners)

    def parts(
        self, arm: str, count: int, ration: Ration | None = None
    ) -> tuple[Decoder, Drafter, ArmSettings]:
        """What decodes an arm, a drafter for `count` requests, and what the arm says."""
        settings = self._arms[arm]
        vocabulary, figures = self._target.config.vocab_size, self._tree_figures.get(arm)
        batching = settings.batching
        make: Callable[[Bound, Drafting], Drafter] = Bound.new_drafter
        if batching is not None and batching.buckets:
            capacity = self._deployment.context_length
            make = self.runners.drafters(self._target, batching.slots, capacity)
        bound = self._bound.get(arm)
        drafter = settings.new_drafter(self._recorded, vocabulary, bound, figures, ration, make)
        if arm in self._two_level:
            drafter = self._two_level[arm].drafter(drafter, count)
        return self._decoders[arm], self._wrap[arm](drafter) if arm in self._wrap else drafter, settings

    def batcher(self, arm: str) -> BatchEngine | None:
        """An engine for requests that come and go, which closes the session; None: the arm does not batch.

        Raises:
            UsageError: its table of costs, or the target, cannot be used.
        """
        batching = self._arms[arm].batching
        if batching is None:
            return None
        ration = ration_of(self._arms[arm], self._bound.get(arm))
        decoder, drafter, settings = self.parts(arm, batching.slots, ration)
        try:
            return open_batcher(decoder, drafter, ration, settings, batching, self.close, self.runners)
        except MechanismError as error:
            raise UsageError(f"arms[{arm}].params: {error}") from None

    def close(self) -> None:
        """Let go of weights and caches."""
        self._decoders.clear()
        self._bound.clear()
        self._two_level.clear()
        self._dense.clear()
        del self._target, self._loaded, self._recorder, self._lanes, self.runners
        if self._deployment.device == "cuda":
            torch.cuda.empty_cache()


def open_session(
    deployment: Deployment,
    arms: Sequence[ArmSpec],
    rules: Mapping[str, Rules] | None = None,
    wrap: Mapping[str, Wrap] | None = None,
    shipped: Path = ROOT,
) -> ReferenceSession:
    """Load the target once for all arms.

    Args:
        deployment: target, device, context.
        arms: their `params`: `drafter` ("none", "ngram", "null", "replay", "dflash", "dflash2", "dspark",
            "eagle3"), `drafts`; for ngram `ngram_min` and `ngram_max`; for the trained ones `checkpoint`
            (left out: the one shipped for this target), `draft_sample_method`, `tree` (nodes of a draft
            tree), and for dspark `min_confidence`; for any of them `two_level` and its own, `delta_form`.
        rules: other decisions for an arm, by its name; for tests of the oracle.
        wrap: what to put around an arm's drafter, by its name; for tests of the oracle.
        shipped: folder of the drafters that come with the package.

    Raises:
        ModelError: the model folder cannot be used.
        UsageError: an arm's parameter is unknown or out of range, or the deployment asks for what
            this engine does not have.
    """
    settings: dict[str, ArmSettings] = {}
    for arm in arms:
        with _as_usage_errors(), about(arm.name):
            settings[arm.name] = parse_settings(arm.params)
    if deployment.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("deployment `device` is 'cuda', but torch finds no such device here")
    if deployment.threads is not None:
        torch.set_num_threads(deployment.threads)
    model = resolve_model(deployment.target)
    if deployment.context_length > model.context_length:
        raise UsageError(
            f"deployment `context_length` = {deployment.context_length}: the target's is "
            f"{model.context_length}"
        )
    return ReferenceSession(deployment, model, settings, rules or {}, wrap or {}, shipped)


def examine(
    deployment: Deployment, folders: Sequence[Path], prompts: Sequence[Sequence[int]], tokens: int
) -> dict[Path, tuple[Finding, ...]]:
    """What every detector of broken drafters says of some drafters for one target.

    Args:
        deployment: target and device.
        folders: of the drafters.
        prompts: token ids; the target answers them, and the drafters draft the answers.
        tokens: of an answer, at most.

    Raises:
        ModelError: the target cannot be used, or a drafter cannot be loaded for it.
    """
    model = resolve_model(deployment.target)
    dtype: torch.dtype = getattr(torch, deployment.target.dtype)
    found = {}
    try:
        target = load_target(model.path, dtype, torch.device(deployment.device))
        texts = answered(target, prompts, model.eos_token_ids, tokens)
        for folder in folders:
            network = load_drafter(folder, target.dtype, target.device)
            found[folder] = doctor(bind(network, target, str(folder)), target, texts)
    except (TargetError, DrafterError) as error:
        raise ModelError(str(error)) from None
    return found


def measure_figures(
    deployment: Deployment, params: Mapping[str, object], sample: Sample, out: Path, shipped: Path = ROOT
) -> str:
    """Measure the file that an arm names as `gain_figures` or `tree_figures`.

    Args:
        deployment: target and device.
        params: of the arm.
        sample: prompts, tokens, clock.
        out: the file.
        shipped: folder of the drafters that come with the package.

    Returns:
        What was found, for people.

    Raises:
        ModelError: the target cannot be used.
        UsageError: the arm has no figures, or its drafter cannot be used.
    """
    model = resolve_model(deployment.target)
    if deployment.threads is not None:
        torch.set_num_threads(deployment.threads)
    try:
        arm = parse_settings(params)
        dtype: torch.dtype = getattr(torch, deployment.target.dtype)
        target = load_target(model.path, dtype, torch.device(deployment.device))
        bound, digest = None, ""
        if arm.trained:
            folder = folder_of("figures", arm, model.sha256, shipped)
            bound = load_drafters({"figures": folder}, target)["figures"]
            arm, digest = arm.fitted(bound), weights_sha256(folder.path)
        loaded = Loaded(
            target, model.path, model.sha256 or "", model.eos_token_ids, deployment.context_length
        )
        return write_arm_figures(arm, loaded, bound, digest, sample, out)
    except ParameterError as error:
        raise UsageError(str(error)) from None
    except TargetError as error:
        raise ModelError(str(error)) from None


def measure_costs(
    deployment: Deployment,
    params: Mapping[str, object],
    load: Load,
    watch: Watch,
    out: Path,
    shipped: Path = ROOT,
) -> str:
    """Measure the file that an arm names as `step_costs`.

    Args:
        deployment: target and device.
        params: of the arm.
        load: to measure under.
        watch: clock, date, progress.
        out: the file.
        shipped: folder of the drafters that come with the package.

    Returns:
        What was found, for people.

    Raises:
        ModelError: the target cannot be used.
        UsageError: the arm's drafter cannot be used, or the target runs in no steps of fixed shape.
    """
    model = resolve_model(deployment.target)
    if deployment.threads is not None:
        torch.set_num_threads(deployment.threads)
    dtype: torch.dtype = getattr(torch, deployment.target.dtype)
    try:
        target = load_session_target(
            model.path, deployment.weights_format, dtype, torch.device(deployment.device)
        )
    except (TargetError, WeightError) as error:
        raise ModelError(str(error)) from None
    try:
        arm, bound, digest = parse_settings(params), None, ""
        if arm.trained:
            folder = folder_of("costs", arm, model.sha256, shipped)
            bound = load_drafters({"costs": folder}, target)["costs"]
            arm, digest = arm.fitted(bound), weights_sha256(folder.path)
        named = Named(deployment.name, model.sha256 or "", arm.drafter, digest, deployment.weights_format)
        return measure(loaded_subject(target, bound, arm.drafts), named, load, watch, out)
    except MechanismError as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def _as_usage_errors() -> Iterator[None]:
    try:
        yield
    except ParameterError as error:
        raise UsageError(str(error)) from None


@contextlib.contextmanager
def _as_backend_errors() -> Iterator[None]:
    try:
        yield
    except (RequestError, TargetError) as error:
        raise BackendError(str(error)) from None


def _request(request: DecodeRequest) -> Request:
    return Request(
        name=request.request_id,
        prompt=request.prompt_token_ids,
        capture_logits=request.capture_logits,
        sampling=Sampling(**msgspec.structs.asdict(request.sampling)),  # the same fields, by design
    )


def _step_event(event: Event) -> StepEvent:
    return StepEvent(
        index=event.slot,
        kind=event.kind,
        token_ids=event.token_ids,
        num_draft_tokens=event.drafted,
        num_accepted_tokens=event.accepted,
        finish_reason=event.finish_reason,
        stop_reason=event.stop_reason,
        text=event.text,
        logits_sha256=event.logits_sha256,
    )
