"""From two addresses and a prompt file to a job that the house runs like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import UsageError
from harness.load.wire import Capabilities
from harness.plan import (
    ArmKind,
    ArmSpec,
    Deployment,
    DType,
    Job,
    MeasureSpec,
    ModelSpec,
    OracleSpec,
    Param,
    Plan,
    SetSpec,
    StatsSpec,
)
from harness.protocols import resolve
from harness.records import Sampling

BACKEND = "harness.backends.openai_server:open_session"
SCORERS = {
    "server": "harness.backends.server_scorer:open_scorer",
    "transformers": "harness.backends.transformers_scorer:open_scorer",
}
LOGPROBS = 5  # best tokens of a position that greedy output is judged with
CLAIM = MeasureSpec(launches=3, blocks=5)  # a smaller run stands behind no claim, nor one of fewer requests
CLAIM_REQUESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the command line of `compare` says."""

    urls: Mapping[ArmKind, str]  # "stock", "candidate", and perhaps "ar"
    prompts: str  # a file, or the name of a set
    field: str
    count: int
    sampling: Sampling
    model: str | None  # a folder, or owner/name@revision; None asks the stock server
    served: str | None  # name of the model on the servers; None takes the only one
    force: Literal["server", "transformers"]
    dtype: DType
    launches: int
    blocks: int
    concurrency: int
    request_rate: float
    seed: int
    timeout_s: float
    calibration_set: str
    calibration_prompts: int
    stats: StatsSpec


def comparison_job(wanted: Comparison, stock: Capabilities) -> Job:
    """The plan and deployment of a comparison.

    Args:
        wanted: what the user asked for.
        stock: what the stock server says of itself.

    Raises:
        UsageError: an option does not fit the others; the message names it.
    """
    sampling = wanted.sampling
    if wanted.force == "server" and not sampling.greedy and not sampling.top_k:
        raise UsageError(
            "--temperature above 0 over a server needs --top-k, so that the tokens it tells are all that can "
            "be drawn (vLLM tells up to 20, or --max-logprobs of them); or give --model FOLDER with the "
            "weights and --force transformers"
        )
    penalised = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0
    if wanted.force == "server" and penalised:
        raise UsageError(
            "penalties need stock's whole logits: give --model FOLDER with its weights and "
            "--force transformers"
        )
    if wanted.calibration_prompts < 1:
        raise UsageError("--calibration-prompts must be at least 1")
    if wanted.request_rate > 0.0 and wanted.concurrency == 1:
        raise UsageError("--request-rate needs --concurrency above 1: the most requests in flight")
    path = Path(wanted.prompts)
    is_file = path.suffix in (".jsonl", ".json") or path.is_file()
    drawn = SetSpec(
        name=path.stem if is_file else wanted.prompts,
        path=str(path.resolve()) if is_file else None,
        field=wanted.field,
        count=wanted.count,
    )
    overlapping = wanted.concurrency > 1
    requests = wanted.launches * wanted.blocks * wanted.count
    enough = wanted.launches >= CLAIM.launches and wanted.blocks >= CLAIM.blocks
    plan = Plan(
        schema="plan/1",
        name="compare",
        deployment="servers",
        label="full" if enough and requests >= CLAIM_REQUESTS else "smoke",
        sets=(drawn,),
        arms=tuple(_arm(kind, url, wanted) for kind, url in wanted.urls.items()),
        sampling=sampling,
        measure=MeasureSpec(
            launches=wanted.launches,
            blocks=wanted.blocks,
            batch=wanted.count if overlapping else 1,
            seed=wanted.seed,
            warmup_prompts=min(wanted.concurrency, wanted.count) + 1,
            max_foreign_load=1.0,  # the servers may well run on this machine
        ),
        oracle=OracleSpec(
            scorer=SCORERS[wanted.force],
            calibration_set=wanted.calibration_set,
            calibration_prompts=wanted.calibration_prompts,
        ),
        stats=wanted.stats,
        note="Servers compared over HTTP: what they run inside is theirs to say.",
    )
    deployment = Deployment(
        schema="deployment/1",
        name="servers",
        target=_model(wanted, stock),
        device="remote",
        context_length=stock.max_model_len or 2048,
        stock_url=wanted.urls["stock"],
        stock_logprobs=max(LOGPROBS, 0 if sampling.greedy else sampling.top_k),
    )
    return Job(plan=plan, deployment=deployment)


def try_stock(job: Job) -> None:
    """Hold that stock can force tokens, before anything is measured; a local scorer loads later.

    Raises:
        UsageError: the server at `stock_url` cannot; the message says what it lacks.
    """
    if job.plan.oracle.scorer == SCORERS["server"]:
        resolve(job.plan.oracle.scorer, "oracle.scorer")(job.deployment)


def _arm(kind: ArmKind, url: str, wanted: Comparison) -> ArmSpec:
    params: dict[str, Param] = {
        "url": url,
        "concurrency": wanted.concurrency,
        "timeout_s": wanted.timeout_s,
    }
    if wanted.served is not None:
        params["model"] = wanted.served
    if wanted.request_rate > 0.0:
        params |= {"request_rate": wanted.request_rate, "arrival_seed": wanted.seed}
    return ArmSpec(name=kind, kind=kind, backend=BACKEND, params=params)


def _model(wanted: Comparison, stock: Capabilities) -> ModelSpec:
    """Where tokenizer and configuration are read, and the weights if they are to force tokens."""
    remote = wanted.force == "server"
    named = wanted.model or stock.root
    if named is None:
        raise UsageError("the stock server does not say where its model lies; give --model FOLDER")
    if Path(named).is_dir():
        return ModelSpec(path=str(Path(named).resolve()), remote=remote, dtype=wanted.dtype)
    name, _, revision = named.partition("@")
    if not revision:
        raise UsageError(
            f"--model: {named!r} is no folder here; give one with config.json and the tokenizer, or "
            "owner/name@REVISION with a full commit hash"
        )
    return ModelSpec(hub=name, revision=revision, remote=remote, dtype=wanted.dtype)
