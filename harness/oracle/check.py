"""Re-derives a report from what was stored and from stock; lists every claim that does not hold.

A stored hash proves nothing here, so none is consulted: prompts are tokenised again, emitted ids are
forced through stock again, the margin is measured again, and every number of an arm is computed
again from the responses. A forged margin, verdict, count or rate has nothing to hide behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.drafter_detectors import detections
from harness.errors import DataError
from harness.models import resolve_model
from harness.oracle.compare import differences
from harness.oracle.judge import Judged, common_length
from harness.oracle.session import Stock, calibration_ids, judge_against, open_stock, stock_baseline
from harness.oracle.statement import divergence_text, place
from harness.oracle.stored import StoredRun, read_run
from harness.progress import Reporter
from harness.records import Prompt, PromptLine, Response
from harness.results import SCHEMA_VERSION, ArmLosslessness, ArmResult, Losslessness, Report
from harness.stats.summary import ArmSpeed, summarise_arms
from harness.tokenize import PromptTokenizer

MARGIN_SLACK = 2.0  # between two machines or two samples of prompts; more is no honest measurement
SHOWN = 20  # problems of one kind
TIMED = (
    "tokens_per_second",
    "speedup",
    "speedup_geomean",
    "speedup_decode",
    "by_category",
    "speedup_by_set",
    "slower_share",
    "verdict",
    "latency",
)
COUNTED = ("requests", "failed", "tokens", "acceptance", "acceptance_by_set")
TOLD_LATER = ("acceptance_by_set", "speedup_by_set")  # earlier reports claim nothing here
# What another machine's rounding may change without any claim being false.
ROUNDED = ("mismatches", "near_ties", "stock_verdict")


def check_report(
    root: Path,
    reporter: Reporter,
    calibration: Sequence[Prompt] | None = None,
    *,
    stock: Stock | None = None,
) -> tuple[str, ...]:
    """Everything in a report that does not follow from its responses and from stock.

    Args:
        root: folder of a finished run.
        reporter: shown the progress.
        calibration: the prompts the run measured stock's noise on, from their own source and not
            from the folder. None measures it on the prompts of the run: the tokens judged are still
            not those it is measured on, but the noise cannot then be compared digit by digit.
        stock: already loaded; None loads what the plan names.

    Returns:
        Problems, the weightiest last; empty when every claim holds and nothing is violated.

    Raises:
        DataError: a file of the run cannot be read.
        ModelError: the target cannot be used.
    """
    run = read_run(root)
    problems = [*_plan_problems(run), *_schedule_problems(run), *_number_problems(run)]
    model = resolve_model(run.job.deployment.target, progress=reporter.note)
    tokenizer = PromptTokenizer(model.path)
    prompts = tuple(
        PromptLine(prompt=line.prompt, token_ids=tokenizer.encode(line.prompt)) for line in run.prompts
    )
    problems += _prompt_problems(run, prompts)
    loaded = stock if stock is not None else open_stock(run.job, model)
    held_out = (
        [line.token_ids for line in prompts][: run.job.plan.oracle.calibration_prompts]
        if calibration is None
        else calibration_ids(run.job, prompts, calibration, tokenizer)
    )
    baseline = stock_baseline(run.job, held_out, loaded, reporter)
    known = _judgeable(run)
    judged = judge_against(run.job, prompts, known, baseline, tokenizer, loaded, reporter)
    same = run.report.losslessness is not None and run.report.losslessness.scorer == dict(
        judged.overall.scorer
    )
    if not same:
        reporter.note(
            "stock here is not that of the report (other machine or versions): near ties may differ in number"
        )
    told = list(_verdict_problems(run.report, judged, same=same, same_noise=same and calibration is not None))
    odd = _odd_ones(run, known) if told else ()
    return (*problems, *told, *odd, *_violations(judged.overall))


def _plan_problems(run: StoredRun) -> Iterator[str]:
    """The report speaks of the job that lies beside it."""
    report, job = run.report, run.job
    if report.schema_version != SCHEMA_VERSION:
        yield f"report.json: `schema_version` is {report.schema_version}, this version reads {SCHEMA_VERSION}"
    if report.job != job:
        yield "report.json: `job` is not the one in job.json"
    if report.plan.hash != job.hash:
        yield f"report.json: `plan.hash` is {report.plan.hash}, job.json has {job.hash}"
    for field, told, meant in (
        ("name", report.name, job.plan.name),
        ("label", report.label, job.plan.label),
        ("division", report.division, job.plan.effective_division),
        ("arms", [arm.name for arm in report.arms], [arm.name for arm in job.plan.arms]),
    ):
        if told != meant:
            yield f"report.json: `{field}` is {told!r}, the plan says {meant!r}"


def _schedule_problems(run: StoredRun) -> Iterator[str]:
    """Every prompt met every arm once in every block of every launch, and nothing else happened."""
    measure = run.job.plan.measure
    expected = {
        (launch, block, arm.name, line.prompt.prompt_id)
        for launch in range(measure.launches)
        for block in range(measure.blocks)
        for arm in run.job.plan.arms
        for line in run.prompts
    }
    found = Counter((r.launch, r.block, r.arm, r.prompt_id) for r in run.responses)
    for what, keys in (
        ("missing", expected - found.keys()),
        ("not of this plan", found.keys() - expected),
        ("there more than once", {key for key, count in found.items() if count > 1}),
    ):
        if keys:
            launch, block, arm, prompt_id = min(keys)
            yield (
                f"responses.jsonl: {len(keys)} responses are {what}, the first: arm {arm}, "
                f"prompt {prompt_id}, launch {launch}, block {block}"
            )


def _prompt_problems(run: StoredRun, again: Sequence[PromptLine]) -> Iterator[str]:
    """The ids that were sent are those of the prompts."""
    counts = Counter(line.prompt.prompt_id for line in run.prompts)
    yield from (f"prompts.jsonl: prompt {name} is there {n} times" for name, n in counts.items() if n > 1)
    drawn = {summary.name: summary.drawn for summary in run.report.sets}
    stored = Counter(line.prompt.set_name for line in run.prompts)
    if drawn != stored:
        yield f"report.json: `sets` counts prompts as {drawn}, prompts.jsonl holds {dict(stored)}"
    for line, other in zip(run.prompts, again, strict=True):
        if line.token_ids != other.token_ids:
            yield f"prompts.jsonl: the ids of prompt {line.prompt.prompt_id} are not those of its text"
    lengths = {line.prompt.prompt_id: len(line.token_ids) for line in again}
    for response in run.responses:
        wanted = lengths.get(response.prompt_id)
        if wanted is not None and response.prompt_tokens != wanted:
            yield (
                f"responses.jsonl: arm {response.arm}, prompt {response.prompt_id}: `prompt_tokens` is "
                f"{response.prompt_tokens}, the prompt has {wanted}"
            )
            return


def _number_problems(run: StoredRun) -> Iterator[str]:
    """Counts, acceptance, rates and speedups, computed again from the responses."""
    try:
        again = summarise_arms(run.responses, [line.prompt for line in run.prompts], run.job.plan)
    except DataError as error:  # the responses do not pair up: no number of the report can be right
        yield f"responses.jsonl: {error}"
        return
    for arm in run.report.arms:
        speed = again.arms.get(arm.name)
        if speed is not None:
            yield from _arm_problems(arm, speed, valid=run.report.status == "valid")
    told = run.report.detections
    silent = all(arm.acceptance_by_set is None for arm in run.report.arms)  # an earlier report
    if not silent and told != detections(run.responses, run.report.backends):
        yield "report.json: `detections` are not those that the responses give"
    failed = sum(response.status == "failed" for response in run.responses)
    if run.report.status == "valid" and failed:
        yield f"report.json: `status` is valid, but {failed} requests failed"
    if (run.report.status == "valid") != (not run.report.reasons):
        yield f"report.json: `status` is {run.report.status} with {len(run.report.reasons)} reasons"


def _arm_problems(arm: ArmResult, speed: ArmSpeed, *, valid: bool) -> Iterator[str]:
    silent = {field for field in TOLD_LATER if getattr(arm, field) is None}
    for field in (field for field in COUNTED + TIMED if field not in silent):
        wanted = getattr(speed, field) if valid or field in COUNTED else _absent(field)
        yield from (
            f"report.json: arm {arm.name}: {difference}"
            for difference in differences(getattr(arm, field), wanted, field, "the responses give")
        )
    length = None if speed.acceptance is None else speed.acceptance.length
    yield from (
        f"report.json: arm {arm.name}: {difference}"
        for difference in differences(
            arm.acceptance_length, length, "acceptance_length", "the responses give"
        )
    )


def _absent(field: str) -> object:
    return () if field == "by_category" else None


def _judgeable(run: StoredRun) -> list[Response]:
    """Responses of prompts and arms of the run; the others are a problem already."""
    prompts = {line.prompt.prompt_id for line in run.prompts}
    arms = {arm.name for arm in run.job.plan.arms}
    return [r for r in run.responses if r.prompt_id in prompts and r.arm in arms]


def _verdict_problems(report: Report, judged: Judged, *, same: bool, same_noise: bool) -> Iterator[str]:
    """Claims of losslessness against the verdict derived here; the reason comes last."""
    claimed, found = report.losslessness, judged.overall
    if claimed is None:
        yield "report.json: `losslessness` is missing"
        return
    for arm in report.arms:
        own = judged.arms.get(arm.name)
        if own is not None and arm.losslessness is not None:
            yield from _claim_problems(f"arm {arm.name}: ", arm.losslessness, own, same=same)
            if same_noise:
                yield from (
                    f"report.json: arm {arm.name}: {difference}"
                    for difference in differences(
                        arm.losslessness.distribution_test,
                        own.distribution_test,
                        "losslessness.distribution_test",
                        "stock gives",
                    )
                )
        elif own is not None:
            yield f"report.json: arm {arm.name}: `losslessness` is missing"
    yield from _margin_problems(claimed, found, same_noise=same_noise)
    yield from _claim_problems("", claimed, found, same=same)
    boasts = "lossless" in claimed.statement.lower() and "lossless" not in found.statement.lower()
    if boasts or (same_noise and claimed.statement != found.statement):
        yield (
            f"report.json: `losslessness.statement` is {claimed.statement!r}, "
            f"the evidence says {found.statement!r}"
        )
    if same:
        yield from _untold(claimed, found)


def _claim_problems(
    who: str, claimed: ArmLosslessness | Losslessness, found: ArmLosslessness | Losslessness, *, same: bool
) -> Iterator[str]:
    for field in ("self_exact", "responses", "ar_identical", "tokens", "distinct_positions", *ROUNDED):
        told, derived = getattr(claimed, field, None), getattr(found, field, None)
        excusable = not same and field in ROUNDED and found.stock_verdict != "violated"
        if told != derived and not excusable:
            yield f"report.json: {who}`losslessness.{field}` is {told}, the stored ids give {derived}"


def _margin_problems(claimed: Losslessness, found: Losslessness, *, same_noise: bool) -> Iterator[str]:
    told, measured = claimed.margin, found.margin
    if told is None or measured is None:
        yield "report.json: `losslessness.margin` is missing"
    elif same_noise:
        for field in ("margin", "stock_noise", "rate_test", "error_bound"):
            yield from (
                f"report.json: {difference}"
                for difference in differences(
                    getattr(claimed, field), getattr(found, field), f"losslessness.{field}", "measured here"
                )
            )
    elif told.value > MARGIN_SLACK * measured.value:
        yield (
            f"report.json: `losslessness.margin.value` is {told.value:.4g} logits, "
            f"stock's own noise gives {measured.value:.4g} here"
        )


def _untold(claimed: Losslessness, found: Losslessness) -> Iterator[str]:
    """Divergences and stop faults that the report does not tell of."""
    margin = found.margin.value if found.margin is not None else 0.0
    told = {place(divergence) for divergence in claimed.divergences}
    new = [d for d in found.divergences if d.near_tie and place(d) not in told]
    yield from (f"not in the report: {divergence_text(d, margin)}" for d in new[:SHOWN])


def _odd_ones(run: StoredRun, responses: Sequence[Response]) -> Iterator[str]:
    """Where one response of an arm leaves the others on its prompt: a hint at what was changed."""
    if not run.job.plan.sampling.greedy:
        return
    groups: dict[tuple[str, str], list[Response]] = {}
    for response in responses:
        groups.setdefault((response.arm, response.prompt_id), []).append(response)
    shown = 0
    for group in groups.values():
        (usual, count), *others = Counter(response.token_ids for response in group).most_common()
        for response in group:
            if others and 2 * count > len(group) and response.token_ids != usual and shown < SHOWN:
                shown += 1
                yield (
                    f"arm {response.arm}, prompt {response.prompt_id}, launch {response.launch}, block "
                    f"{response.block}, position {common_length(usual, response.token_ids)}: the ids leave "
                    "those of the arm's other responses to this prompt"
                )


def _violations(found: Losslessness) -> Iterator[str]:
    """What breaks the rule, whatever the report says of it; the summary last."""
    if found.stock_verdict != "violated":
        return
    margin = found.margin.value if found.margin is not None else 0.0
    unexcused = [d for d in found.divergences if not d.near_tie]
    yield from (f"{place(fault)}: {fault.fault}" for fault in found.stop_faults[:SHOWN])
    yield from (divergence_text(d, margin) for d in unexcused[:SHOWN])
    yield found.statement
