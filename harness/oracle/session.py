"""The edge of the oracle: loads stock, forces every distinct sequence once, hands all to the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.errors import DataError, InvalidRun
from harness.models import ModelFolder, resolve_model
from harness.oracle.force import Forced, force
from harness.oracle.judge import Case, Judged, Key, judge, key_of
from harness.oracle.margin import StockBaseline, measure_baseline
from harness.oracle.stops import StopRules, check_end, stop_rules
from harness.plan import Job
from harness.progress import Reporter
from harness.protocols import Scorer, resolve
from harness.records import Prompt, PromptLine, Response
from harness.tokenize import PromptTokenizer


class Stock(NamedTuple):
    """The independent stock implementation of a run, and what it says of the target."""

    scorer: Scorer
    eos_token_ids: tuple[int, ...]
    vocab_size: int


def open_stock(job: Job, model: ModelFolder | None = None) -> Stock:
    """Load stock as the plan names it.

    Args:
        job: plan and deployment.
        model: the target's folder; None finds it, which hashes its weights.

    Raises:
        ModelError: the target cannot be used.
        UsageError: `oracle.scorer` names nothing that can be called.
    """
    folder = model if model is not None else resolve_model(job.deployment.target)
    scorer: Scorer = resolve(job.plan.oracle.scorer, "oracle.scorer")(job.deployment, folder)
    return Stock(scorer, folder.eos_token_ids, folder.vocab_size)


def run_oracle(
    job: Job,
    prompts: Sequence[PromptLine],
    responses: Sequence[Response],
    calibration: Sequence[Prompt],
    tokenizer: PromptTokenizer,
    reporter: Reporter,
    stock: Stock | None = None,
) -> Judged:
    """Judge the responses of a run.

    Args:
        job: plan and deployment.
        prompts: of the run, with the ids that were sent.
        responses: of the run; failed ones are passed over.
        calibration: prompts for stock's own noise, disjoint from the run; the first
            `oracle.calibration_prompts` of them are used.
        tokenizer: the target's.
        reporter: shown the progress.
        stock: already loaded; None loads what the plan names.

    Raises:
        InvalidRun: stock's noise cannot be measured on these calibration prompts.
        DataError: a response belongs to no prompt of the run.
        ModelError: the target cannot be used.
    """
    held_out = calibration_ids(job, prompts, calibration, tokenizer)
    loaded = stock if stock is not None else open_stock(job)
    baseline = stock_baseline(job, held_out, loaded, reporter)
    return judge_against(job, prompts, responses, baseline, tokenizer, loaded, reporter)


def calibration_ids(
    job: Job, prompts: Sequence[PromptLine], calibration: Sequence[Prompt], tokenizer: PromptTokenizer
) -> list[tuple[int, ...]]:
    """Token ids of the calibration prompts.

    Raises:
        InvalidRun: there are none, one is a prompt of the run, or one does not fit the context.
    """
    spec = job.plan.oracle
    ids = [tokenizer.encode(prompt) for prompt in calibration[: spec.calibration_prompts]]
    if not ids:
        raise InvalidRun(
            f"no calibration prompt is left in set {spec.calibration_set!r} beside those of the run; "
            "draw fewer rows of it or name another `oracle.calibration_set`"
        )
    used = {line.token_ids: line.prompt.prompt_id for line in prompts}
    for prompt, own in zip(calibration, ids, strict=False):
        if own in used:
            raise InvalidRun(
                f"calibration prompt {prompt.prompt_id} is prompt {used[own]} of the run; "
                "name another `oracle.calibration_set`"
            )
        if len(own) + spec.calibration_tokens > job.deployment.context_length:
            raise InvalidRun(
                f"calibration prompt {prompt.prompt_id} ({len(own)} tokens) does not fit `context_length` = "
                f"{job.deployment.context_length} with {spec.calibration_tokens} `calibration_tokens`"
            )
    return ids


def stock_baseline(
    job: Job, prompts: Sequence[Sequence[int]], stock: Stock, reporter: Reporter
) -> StockBaseline:
    """Stock's noise on these prompts, by the plan's sizes."""
    spec = job.plan.oracle
    return measure_baseline(
        stock.scorer,
        prompts,
        tokens=spec.calibration_tokens,
        verify_rows=spec.verify_rows,
        stop_ids=stock.eos_token_ids,
        advance=reporter.stage("measuring stock's own noise", len(prompts)),
    )


def judge_against(
    job: Job,
    prompts: Sequence[PromptLine],
    responses: Sequence[Response],
    baseline: StockBaseline,
    tokenizer: PromptTokenizer,
    stock: Stock,
    reporter: Reporter,
) -> Judged:
    """Force every distinct response and apply the rule with a given baseline."""
    rules = stop_rules(job.plan.sampling, stock.eos_token_ids, stock.vocab_size)
    finished = [response for response in responses if response.status == "ok"]
    found = (check_end(response, rules, tokenizer.decode) for response in finished)
    case = Case(
        job=job,
        responses=responses,
        forced=force_all(prompts, finished, baseline.margin.value, rules, stock, reporter),
        baseline=baseline,
        stop_faults=tuple(fault for fault in found if fault is not None),
        token_text=tokenizer.token_text,
        scorer=stock.scorer.describe(),
    )
    return judge(case)


def force_all(
    prompts: Sequence[PromptLine],
    responses: Sequence[Response],
    margin: float,
    rules: StopRules,
    stock: Stock,
    reporter: Reporter,
) -> Mapping[Key, Forced]:
    """Every distinct pair of prompt and emitted ids, forced through stock once.

    Raises:
        DataError: a response belongs to no prompt.
    """
    ids = {line.prompt.prompt_id: line.token_ids for line in prompts}
    keys = sorted({key_of(response) for response in responses})
    unknown = [prompt_id for prompt_id, _ in keys if prompt_id not in ids]
    if unknown:
        raise DataError(f"a response names prompt {unknown[0]!r}, which is not among the prompts of the run")
    advance = reporter.stage("forcing every emitted token through stock", len(keys))
    forced: dict[Key, Forced] = {}
    for key in keys:
        prompt_id, emitted = key
        known = _within(emitted, rules.vocab_size)
        chunks = stock.scorer.logits(ids[prompt_id], known, None)
        forced[key] = force(chunks, ids[prompt_id], known, rules, margin)
        advance(1)
    return forced


def _within(token_ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """The ids before the first that is no token; that one is a stop fault, not a position."""
    stop = next((n for n, token in enumerate(token_ids) if not 0 <= token < vocab_size), len(token_ids))
    return token_ids[:stop]
