"""Is this engine lossless: any function from prompt ids to emitted ids, judged by the oracle's own rule.

For tests of engines that are not the harness's: no plan, no report, no times. Greedy only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import UsageError
from harness.models import ModelFolder, resolve_model
from harness.oracle.judge import Judged
from harness.oracle.margin import StockBaseline, measure_baseline
from harness.oracle.session import Stock, judge_against, open_stock
from harness.oracle.statement import divergence_text, place
from harness.plan import ArmSpec, Deployment, DType, Job, ModelSpec, OracleSpec, Plan, SetSpec
from harness.progress import SilentReporter
from harness.records import Chunk, Prompt, PromptLine, Response, Sampling
from harness.results import LOSSLESS
from harness.tokenize import PromptTokenizer

# Prompt ids and the most tokens to emit, to the ids that were emitted, a stop token included.
Engine = Callable[[Sequence[int], int], Sequence[int]]
ARM = "engine"
CALIBRATION = (  # beside any prompts of a test; stock's own noise is measured on them
    "List the four seasons and one thing that grows in each.",
    "Write a function that returns the larger of two numbers.",
    "Explain to a child why the sky is blue.",
    "Translate into French: the train leaves at noon.",
    "What is 17 times 6? Show the steps.",
    "Describe a harbour in the early morning.",
)


class StockJudge(NamedTuple):
    """A target's stock implementation, loaded once and ready to judge."""

    job: Job
    stock: Stock
    tokenizer: PromptTokenizer
    baseline: StockBaseline


def open_judge(
    model: Path, *, max_tokens: int = 64, dtype: DType = "float32", calibration: Sequence[str] = CALIBRATION
) -> StockJudge:
    """Load stock from a Hugging Face folder and measure its own noise.

    Args:
        model: folder with config.json, weights and tokenizer.
        max_tokens: the most an engine may emit for a prompt.
        dtype: what stock computes in; the engine's own.
        calibration: prompts for stock's noise; none of them may be tested.

    Raises:
        ModelError: the folder cannot be used.
        InvalidRun: stock's noise cannot be measured on the calibration prompts.
    """
    oracle = OracleSpec(calibration_prompts=len(calibration), calibration_tokens=max(2, min(48, max_tokens)))
    job = Job(
        plan=Plan(
            schema="plan/1",
            name="assert-lossless",
            deployment="assert-lossless",
            label="smoke",
            sets=(SetSpec(name="own", count=1),),
            arms=(ArmSpec(name=ARM, kind="stock", backend="harness.lossless:open_judge"),),
            sampling=Sampling(max_tokens=max_tokens),
            oracle=oracle,
        ),
        deployment=Deployment(
            schema="deployment/1",
            name="assert-lossless",
            target=ModelSpec(path=str(model), dtype=dtype),
            device="cpu",
            context_length=1,
        ),
    )
    folder: ModelFolder = resolve_model(job.deployment.target)
    stock, tokenizer = open_stock(job, folder), PromptTokenizer(folder.path)
    baseline = measure_baseline(
        stock.scorer,
        [tokenizer.encode(_prompt(n, text)) for n, text in enumerate(calibration)],
        tokens=oracle.calibration_tokens,
        verify_rows=oracle.verify_rows,
        stop_ids=stock.eos_token_ids,
        advance=SilentReporter().stage("stock's own noise", len(calibration)),
    )
    return StockJudge(job, stock, tokenizer, baseline)


def judge_engine(engine: Engine, prompts: Sequence[str | Sequence[int]], judge: StockJudge) -> Judged:
    """Run the engine on each prompt and force what it emits through stock.

    Args:
        engine: called with prompt ids and the most tokens to emit.
        prompts: texts, which get the target's chat template, or token ids, which are sent as they are.
        judge: from `open_judge`.

    Raises:
        UsageError: there is no prompt.
    """
    if not prompts:
        raise UsageError("assert_lossless: `prompts` is empty")
    lines = []
    for number, given in enumerate(prompts):
        prompt = _prompt(number, given if isinstance(given, str) else f"token ids {list(given)}")
        ids = judge.tokenizer.encode(prompt) if isinstance(given, str) else tuple(given)
        lines.append(PromptLine(prompt=prompt, token_ids=ids))
    limit = judge.job.plan.sampling.max_tokens
    responses = [_response(line, engine(line.token_ids, limit), judge.stock) for line in lines]
    return judge_against(
        judge.job, lines, responses, judge.baseline, judge.tokenizer, judge.stock, SilentReporter()
    )


def faults(found: Judged) -> tuple[str, ...]:
    """Why the verdict is not lossless, place by place; empty when it is."""
    overall = found.overall
    if overall.stock_verdict in LOSSLESS:
        return ()
    margin = overall.margin.value if overall.margin is not None else 0.0
    told = [f"{place(fault)}: {fault.fault}" for fault in overall.stop_faults]
    told += [divergence_text(d, margin) for d in overall.divergences if not d.near_tie]
    return (*told, overall.statement)


def _prompt(number: int, text: str) -> Prompt:
    return Prompt(
        prompt_id=str(number),
        set_name="own",
        category="own",
        turns=(text,),
        row_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def _response(line: PromptLine, emitted: Sequence[int], stock: Stock) -> Response:
    ids = tuple(int(token) for token in emitted)
    if not ids:
        raise UsageError(f"assert_lossless: the engine emitted nothing for prompt {line.prompt.prompt_id}")
    return Response(
        prompt_id=line.prompt.prompt_id,
        arm=ARM,
        launch=0,
        block=0,
        order=0,
        status="ok",
        prompt_tokens=len(line.token_ids),
        started_at=0.0,
        token_ids=ids,
        finish_reason="stop" if ids[-1] in stock.eos_token_ids else "length",
        first_token_ns=1,  # nothing is timed here
        end_ns=1,
        chunks=(Chunk(num_tokens=len(ids), at_ns=1),),
    )
