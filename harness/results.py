"""What a run concludes: estimates, losslessness, audits, and the report that holds them all.

`report.json` is the canonical JSON of `Report`. Absent is None, never 0: an invalid run carries
reasons and no speedup.

History: report schema_version 1 (0.1.0) first version.
"""

from __future__ import annotations

from typing import Any, Literal

from harness.codec import Record
from harness.plan import ArmKind, Division, Job, Param

SCHEMA_VERSION = 1

StockVerdict = Literal["exact", "near-tie", "violated", "not-judged"]
LOSSLESS: tuple[StockVerdict, ...] = ("exact", "near-tie")  # verdicts that may say so
SpeedVerdict = Literal["baseline", "faster", "slower", "equivalent", "inconclusive"]


class Interval(Record, frozen=True):
    """A point with its confidence interval and how it was made."""

    point: float
    low: float
    high: float
    confidence: float
    method: str
    launches: int
    blocks: int  # per launch
    prompts: int
    resamples: int


class CategorySpeedup(Record, frozen=True):
    """Total-time ratio over `ar` on the prompts of one category."""

    category: str
    prompts: int
    speedup: Interval


class SetSpeedup(Record, frozen=True):
    """Total-time ratio over the baseline on the prompts of one evaluation set."""

    set_name: str
    prompts: int
    speedup: Interval


class Acceptance(Record, frozen=True):
    """Acceptance, derived from the counts of every verify step after the cut.

    `length` = emitted / verify steps, pooled over all steps, bonus token included, prefill token
    excluded. `per_position[i]` = steps that accepted draft i+1 / steps that drafted at least i+1
    tokens; `survival[i]` = steps that accepted at least i+1 / all steps.
    """

    length: float
    length_request_mean: float  # mean over responses of their own emitted / steps
    verify_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_rate: float | None  # accepted / drafted; None when nothing was drafted
    histogram: tuple[int, ...]  # steps by number of accepted draft tokens, from 0
    per_position: tuple[float, ...]
    survival: tuple[float, ...]


class SetAcceptance(Record, frozen=True):
    """Acceptance of an arm on one evaluation set; outputs that repeat themselves are left out.

    `length` and `survival` are those of `Acceptance`. `conditional[i]` = of the steps that accepted the i
    drafts before and drafted one more, the share that accepted it; None where no step got so far.
    """

    set_name: str
    responses: int
    degenerate: int  # of those, left out, see `harness.stats.degenerate`
    length: float | None  # None: no verify step is left
    length_request_mean: float | None
    verify_steps: int
    survival: tuple[float, ...]
    conditional: tuple[float | None, ...]
    length_with_degenerate: float | None  # nothing left out


class Detection(Record, frozen=True):
    """What a detector of broken drafters says of an arm."""

    arm: str
    detector: str
    found: bool | None  # None: could not tell, the detail says why
    detail: str


class Latency(Record, frozen=True):
    """Milliseconds, over responses."""

    ttft_median: float
    ttft_p90: float
    tpot_median: float | None  # None when no response had two tokens
    tpot_p90: float | None
    e2e_median: float
    e2e_p90: float


class Load(Record, frozen=True):
    """A server under load; latencies in milliseconds."""

    wall_seconds: float  # summed over request sets, first request sent to last answer
    output_tokens_per_second: float  # emitted tokens, counted by ids, over the wall time
    requests_per_second: float  # that succeeded
    icl_median: float | None  # gap between chunks; says nothing of tokens
    icl_p99: float | None
    chunks: int
    refusals: int  # answers 429 or 503 before a request was served
    failed: int
    late: int | None  # failed, or beyond a limit; None without limits
    goodput: float | None  # requests a second within every limit


class ArmLosslessness(Record, frozen=True):
    """The oracle's verdict on one arm."""

    stock_verdict: StockVerdict
    self_exact: bool | None  # logits bitwise those of the same engine's `ar`; None: not captured
    responses: int
    tokens: int  # emitted tokens forced through stock
    mismatches: int  # of those, not stock's argmax (near ties included)
    near_ties: int
    ar_identical: int | None  # responses whose ids equal the baseline's first on the same prompt and seed
    distribution_test: DistributionTest | None = None  # above temperature 0


class ArmResult(Record, frozen=True):
    """Everything about one arm."""

    name: str
    kind: ArmKind
    backend: str
    params: dict[str, Param]
    requests: int
    failed: int
    tokens: int
    tokens_per_second: float | None  # emitted tokens / summed response time, batch counted once
    speedup: Interval | None  # headline: summed time of `ar` / summed time of the arm, same prompts
    speedup_geomean: Interval | None  # typical prompt: geometric mean of per-prompt ratios
    speedup_decode: Interval | None  # headline without the time to the first token
    by_category: tuple[CategorySpeedup, ...]
    slower_share: float | None  # share of prompts on which the arm took longer than `ar`
    verdict: SpeedVerdict | None
    acceptance_length: float | None
    acceptance: Acceptance | None
    latency: Latency | None
    losslessness: ArmLosslessness | None
    load: Load | None = None  # of an arm that a server runs
    acceptance_by_set: tuple[SetAcceptance, ...] | None = None  # None: written before it was told
    speedup_by_set: tuple[SetSpeedup, ...] | None = None  # None: invalid, or written before it was told


class Margin(Record, frozen=True):
    """The near-tie margin m, measured on stock against itself before the run's tokens are seen."""

    value: float  # logits: 2 x quantile
    quantile: float  # 99.9 % quantile over positions of the largest logit difference
    largest: float  # largest difference seen
    positions: int  # sample size
    exceedance_bound: float  # 3/N: 95 % bound on the rate of differences above the largest seen
    blind_share: float  # share of stock's own positions whose top-2 gap is at most m
    median_gap: float  # median top-2 gap of stock on those positions
    shapes: tuple[str, ...]  # what was compared, e.g. "one-token steps", "8-row steps"
    prompts: int


class StockNoise(Record, frozen=True):
    """How often stock disagrees with itself between shapes, launches and batch sizes."""

    disagreements: int
    positions: int


class RateTest(Record, frozen=True):
    """One-sided exact binomial test that near ties are no more frequent than stock's own."""

    near_ties: int  # over distinct forced sequences: a repeated response counts once
    positions: int
    stock_disagreements: int
    stock_positions: int
    p_value: float
    level: float
    passed: bool


class Deviation(Record, frozen=True):
    """A departure from stock's distribution, in the least size that a test catches with 80 % power."""

    what: str
    share: float | None  # of the positions it strikes; None: not caught even at every position
    total_variation: float | None  # from stock's distribution, mean over all positions; None: no such number


class DistributionTest(Record, frozen=True):
    """T > 0: standardised surprisal of the emitted tokens under stock's own distribution."""

    tokens: int  # sample size: positions of one response a prompt
    z: float
    p_value: float
    level: float
    passed: bool
    detects: tuple[Deviation, ...] = ()  # computed from stock's distributions at these very positions


class Divergence(Record, frozen=True):
    """One emitted token that is not stock's argmax."""

    prompt_id: str
    arm: str
    launch: int
    block: int
    position: int  # index into the emitted token_ids
    token_id: int
    stock_token_id: int
    token_text: str
    stock_text: str
    gap: float  # stock's logit of its argmax minus that of the emitted token
    top_two: bool
    near_tie: bool


class StopFault(Record, frozen=True):
    """A finish reason, stop or length that the emitted ids do not explain."""

    prompt_id: str
    arm: str
    launch: int
    block: int
    position: int | None
    fault: str


class Losslessness(Record, frozen=True):
    """The verdict of the whole run: the worst over its arms."""

    stock_verdict: StockVerdict
    self_exact: bool | None
    tokens: int
    mismatches: int
    near_ties: int
    error_bound: float | None  # 3/N on the per-token error rate, N distinct forced positions
    distinct_positions: int
    statement: str  # one sentence for people; says "lossless" only where the rule allows it
    margin: Margin | None
    stock_noise: StockNoise | None
    rate_test: RateTest | None
    distribution_test: DistributionTest | None  # that of the arm with the smallest p-value
    divergences: tuple[Divergence, ...]  # the first of each response, at most 100
    stop_faults: tuple[StopFault, ...]
    scorer: dict[str, Any]
    sampled_test: Literal["seeded", "distribution"] | None = None  # above temperature 0: what was tested


class Audit(Record, frozen=True):
    """One automatic check of the run itself."""

    name: str
    passed: bool | None  # None: could not be run; the detail says why
    detail: str


class BlockSpan(Record, frozen=True):
    """When one arm ran in one block: for the time-line."""

    launch: int
    block: int
    arm: str
    started_at: float  # seconds since the epoch, first request of the arm in the block
    busy_seconds: float  # summed response time
    tokens: int


class SetSummary(Record, frozen=True):
    """A drawn evaluation set without its prompts."""

    name: str
    split: str
    source: str
    licence: str
    rows: int
    drawn: int
    raw_sha256: str
    prompts_sha256: str
    merkle_root: str


class PlanRef(Record, frozen=True):
    """Identity of the plan a report belongs to."""

    name: str
    hash: str


class Report(Record, frozen=True):
    """The whole result of a run."""

    schema_version: int
    name: str
    label: Literal["smoke", "full"]
    status: Literal["valid", "invalid"]
    reasons: tuple[str, ...]  # why the run is invalid
    division: Division
    plan: PlanRef
    job: Job
    command: tuple[str, ...]
    created_at: str  # ISO 8601, UTC
    harness: dict[str, Any]  # version, git commit, dirty flag
    environment: dict[str, Any]  # machine, CPU, GPU, driver, clocks, packages
    models: dict[str, Any]
    sets: tuple[SetSummary, ...]
    backends: dict[str, Any]  # what each backend, or server behind it, told of itself in the last launch
    arms: tuple[ArmResult, ...]
    losslessness: Losslessness | None
    audits: tuple[Audit, ...]
    timeline: tuple[BlockSpan, ...]
    telemetry: dict[str, Any]
    warnings: tuple[str, ...]
    files: dict[str, str]  # name -> sha256 of the artefacts beside the report
    detections: tuple[Detection, ...] = ()  # of arms whose drafters have weights
