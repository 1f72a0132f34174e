"""What a report says, as tables of finished strings: the one source of all its faces.

A cell is plain text of others or a number written by `numbers`; the faces only escape and lay out.
An invalid run has no cell with a speed in it, whatever its record carries.
"""

from __future__ import annotations

import shlex

import msgspec

from harness.report import numbers, sampled, text
from harness.report.text import flat, plain, told
from harness.results import ArmResult, Losslessness, Report

Row = dict[str, str]
Rows = list[Row]

SHOWN = 20  # divergences and stop faults; report.json holds the rest
NO_SPEED = "No speed is given: the run is invalid."
ACCEPTANCE_NOTE = (
    "Acceptance length: emitted tokens per verify step over all steps, bonus token included, prefill token "
    "excluded, after the cut at a stop. Per position: of the steps that drafted that far, the share that "
    "accepted it."
)
TELEMETRY_NOTE = (
    "foreign, own: share of the CPU time of all cores that other processes and the run itself used, 1 is all "
    "of it; max: between two neighbouring looks. overhead_share: what looking cost, in shares of one core. "
    "load_1m: processes that ran or waited, mean over a minute. period_seconds: shortest time between looks. "
    "unknown: this machine does not tell."
)
LOAD_NOTE = (
    "Throughput: emitted tokens, counted by ids, over the wall time of whole request sets. An inter-chunk "
    "gap may hold many tokens. Late: failed, or beyond a limit."
)


def sizes(report: Report) -> str:
    """What the run consisted of, in a few words."""
    plan = report.job.plan
    prompts = sum(summary.drawn for summary in report.sets)
    words = (
        f"{prompts} prompts of at most {plan.sampling.max_tokens} tokens, {plan.measure.launches} launches, "
        f"{plan.measure.blocks} blocks"
    )
    return f"{words}, batch {plan.measure.batch}" if plan.measure.batch > 1 else words


def valid(report: Report) -> bool:
    """Whether speeds may be shown."""
    return report.status == "valid"


def baseline(report: Report) -> str:
    """Name of the arm every speedup is over."""
    return text.name(report.job.plan.baseline.name)


def title(report: Report) -> str:
    """Name of the report."""
    return text.name(report.name)


def statement(report: Report) -> str:
    """The verdict in one sentence."""
    found = report.losslessness
    return "Not judged: the oracle did not run." if found is None else plain(found.statement)


def headline(report: Report) -> Rows:
    """A row for each arm: speed, speedup, acceptance length, both verdicts."""
    confidence = numbers.percent(report.job.plan.stats.confidence)
    rows = []
    for arm in report.arms:
        row = {"arm": text.name(arm.name)}
        if valid(report):
            row["tokens/s"] = numbers.rate(arm.tokens_per_second)
            row[f"speedup over {baseline(report)} [{confidence}]"] = numbers.ratio(arm.speedup)
        row["acceptance length"] = numbers.length(arm.acceptance_length)
        if valid(report):
            row["verdict"] = numbers.speed_verdict(arm)
        row["stock verdict"] = numbers.stock_verdict(arm)
        rows.append(row)
    return rows


def speedups(report: Report) -> Rows:
    """The speedup in other words, and how many requests it rests on."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "kind": arm.kind,
            "typical prompt (geometric mean)": numbers.ratio(arm.speedup_geomean),
            "decode only": numbers.ratio(arm.speedup_decode),
            f"prompts slower than {baseline(report)}": "-"
            if arm.verdict == "baseline"
            else numbers.share(arm.slower_share),
            "failed": f"{arm.failed} of {arm.requests}",
            "tokens": str(arm.tokens),
        }
        for arm in report.arms
    ]


def speedup_note(report: Report) -> str:
    """What the speedup is and how its interval was made."""
    name = baseline(report)
    method = next(
        (arm.speedup.method for arm in report.arms if arm.speedup and arm.verdict != "baseline"), None
    )
    note = f"Speedup: summed time of {name} over summed time of the arm, same prompts, launches and blocks."
    return f"{note} Interval: {plain(method)}." if method else note


def loads(report: Report) -> Rows:
    """Arms that servers run, under load; empty for others."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "output tokens/s": numbers.rate(arm.load.output_tokens_per_second),
            "requests/s": numbers.rate(arm.load.requests_per_second),
            "goodput, requests/s": "no limits given"
            if arm.load.goodput is None
            else numbers.rate(arm.load.goodput),
            "late": "-" if arm.load.late is None else str(arm.load.late),
            "failed": str(arm.load.failed),
            "refused first": str(arm.load.refusals),
            "inter-chunk median, ms": numbers.milliseconds(arm.load.icl_median),
            "inter-chunk p99, ms": numbers.milliseconds(arm.load.icl_p99),
            "chunks": str(arm.load.chunks),
        }
        for arm in report.arms
        if arm.load is not None
    ]


def categories(report: Report) -> Rows:
    """The speedup on the prompts of each category."""
    if not valid(report):
        return []
    return [
        {
            "arm": text.name(arm.name),
            "category": text.name(item.category),
            "prompts": str(item.prompts),
            f"speedup over {baseline(report)}": numbers.ratio(item.speedup),
        }
        for arm in report.arms
        for item in arm.by_category
    ]


def losslessness(found: Losslessness) -> Rows:
    """The evidence behind the verdict of the whole run."""
    facts = [
        ("stock verdict", str(found.stock_verdict)),
        ("bitwise equal to the engine's own ar (self_exact)", numbers.bitwise(found.self_exact)),
        ("tokens forced through stock", str(found.tokens)),
        ("mismatches with stock's argmax", str(found.mismatches)),
        ("of those near ties", str(found.near_ties)),
        ("bound", numbers.bound(found)),
        *_margin(found),
        *_tests(found),
        ("stock", told(found.scorer)),
    ]
    return [{"fact": name, "value": value} for name, value in facts]


def _margin(found: Losslessness) -> list[tuple[str, str]]:
    margin = found.margin
    if margin is None:
        return [("near-tie margin m", numbers.ABSENT)]
    return [
        (
            "near-tie margin m",
            f"{numbers.logits(margin.value)} logits: 2 x the 99.9 % quantile "
            f"({numbers.logits(margin.quantile)}) of the largest logit difference of stock against itself",
        ),
        (
            "m was measured on",
            f"{margin.positions} positions of {margin.prompts} other prompts "
            f"({plain(', '.join(margin.shapes))}); largest difference {numbers.logits(margin.largest)}; "
            f"larger ones at less than {numbers.probability(margin.exceedance_bound)} of positions "
            "(3/N, 95 %)",
        ),
        (
            "blind share (stock's own top-2 gap is at most m)",
            f"{numbers.share(margin.blind_share)}; median gap {numbers.logits(margin.median_gap)} logits",
        ),
    ]


def _tests(found: Losslessness) -> list[tuple[str, str]]:
    facts = []
    if found.stock_noise is not None:
        noise = found.stock_noise
        facts.append(
            ("stock against stock", f"{noise.disagreements} disagreements at {noise.positions} positions")
        )
    if found.rate_test is not None:
        rate = found.rate_test
        facts.append(
            (
                "rate of near ties against stock's own (one-sided exact)",
                f"{rate.near_ties} at {rate.positions} positions, stock {rate.stock_disagreements} at "
                f"{rate.stock_positions}; {_outcome(rate.p_value, rate.level, passed=rate.passed)}",
            )
        )
    if found.sampled_test is not None:
        facts.append(("test above temperature 0", sampled.TESTS[found.sampled_test]))
    if found.distribution_test is not None:
        drawn = found.distribution_test
        facts.append(
            (
                "surprisal of the emitted tokens under stock (T > 0), arm furthest off",
                f"z = {drawn.z:.3g} over {drawn.tokens} tokens; "
                f"{_outcome(drawn.p_value, drawn.level, passed=drawn.passed)}",
            )
        )
    return facts


def _outcome(p_value: float, level: float, *, passed: bool) -> str:
    return f"p = {numbers.probability(p_value)}, level {level:g}: {'passed' if passed else 'FAILED'}"


def losslessness_by_arm(report: Report) -> Rows:
    """The oracle's verdict on each arm."""
    name = baseline(report)
    return [
        {
            "arm": text.name(arm.name),
            "stock verdict": str(found.stock_verdict),
            "self_exact": numbers.bitwise(found.self_exact),
            "responses": str(found.responses),
            f"same ids as {name}": "-" if found.ar_identical is None else str(found.ar_identical),
            "tokens forced": str(found.tokens),
            "mismatches": str(found.mismatches),
            "near ties": str(found.near_ties),
        }
        for arm in report.arms
        if (found := arm.losslessness) is not None
    ]


def divergences(found: Losslessness) -> Rows:
    """The first tokens that are not stock's argmax; those that nothing excuses lead."""
    return [
        {
            "prompt": text.name(d.prompt_id),
            "arm": text.name(d.arm),
            "launch": str(d.launch),
            "block": str(d.block),
            "position": str(d.position),
            "emitted": f"{d.token_id} {plain(repr(d.token_text))}",
            "stock": f"{d.stock_token_id} {plain(repr(d.stock_text))}",
            "gap, logits": numbers.logits(d.gap),
            "top two": numbers.yes_no(d.top_two),
            "near tie": numbers.yes_no(d.near_tie),
        }
        for d in found.divergences[:SHOWN]
    ]


def stop_faults(found: Losslessness) -> Rows:
    """Stops that the emitted ids do not explain."""
    return [
        {
            "prompt": text.name(fault.prompt_id),
            "arm": text.name(fault.arm),
            "launch": str(fault.launch),
            "block": str(fault.block),
            "position": "-" if fault.position is None else str(fault.position),
            "fault": plain(fault.fault),
        }
        for fault in found.stop_faults[:SHOWN]
    ]


def shown_of(total: int) -> str:
    """How many of a list are shown: "3", or "the first 20 of 57"."""
    return str(total) if total <= SHOWN else f"the first {SHOWN} of {total}"


def acceptance(report: Report) -> Rows:
    """Acceptance of each arm that made a verify step."""
    return [
        {
            "arm": text.name(arm.name),
            "acceptance length": numbers.length(found.length),
            "mean over responses": numbers.length(found.length_request_mean),
            "verify steps": str(found.verify_steps),
            "drafted": str(found.num_draft_tokens),
            "accepted": str(found.num_accepted_tokens),
            "acceptance rate": "nothing drafted"
            if found.acceptance_rate is None
            else numbers.share(found.acceptance_rate),
            "per position": " ".join(f"{value:.2f}" for value in found.per_position) or "-",
            "steps by accepted tokens": " ".join(map(str, found.histogram)),
        }
        for arm in report.arms
        if (found := arm.acceptance) is not None
    ]


def latency(report: Report) -> Rows:
    """Medians and 90 % quantiles over responses, in ms."""
    return [_latency(arm) for arm in report.arms if arm.latency is not None] if valid(report) else []


def _latency(arm: ArmResult) -> Row:
    found = arm.latency
    assert found is not None  # noqa: S101
    return {
        "arm": text.name(arm.name),
        "TTFT median, ms": numbers.milliseconds(found.ttft_median),
        "TTFT p90, ms": numbers.milliseconds(found.ttft_p90),
        "TPOT median, ms": numbers.milliseconds(found.tpot_median),
        "TPOT p90, ms": numbers.milliseconds(found.tpot_p90),
        "end to end median, ms": numbers.milliseconds(found.e2e_median),
        "end to end p90, ms": numbers.milliseconds(found.e2e_p90),
    }


def audits(report: Report) -> Rows:
    """Checks of the run itself."""
    return [
        {
            "audit": text.name(audit.name),
            "passed": numbers.yes_no(audit.passed),
            "detail": plain(audit.detail),
        }
        for audit in report.audits
    ]


def sets(report: Report) -> Rows:
    """Evaluation sets with the hashes that seal them."""
    return [
        {
            "set": text.name(drawn.name),
            "split": text.name(drawn.split),
            "drawn": f"{drawn.drawn} of {drawn.rows}",
            "source": plain(drawn.source),
            "licence": plain(drawn.licence),
            "raw sha256": plain(drawn.raw_sha256),
            "prompts sha256": plain(drawn.prompts_sha256),
            "Merkle root": plain(drawn.merkle_root),
        }
        for drawn in report.sets
    ]


def arms_as_run(report: Report) -> Rows:
    """Every arm with its backend and parameters."""
    return [
        {
            "arm": text.name(arm.name),
            "kind": arm.kind,
            "backend": plain(arm.backend),
            "parameters": told(arm.params),
        }
        for arm in report.job.plan.arms
    ]


def command(report: Report) -> str:
    """The command line, ready to be pasted into a shell."""
    return plain(shlex.join(report.command))


def how(report: Report) -> Rows:
    """Plan, harness, models and what was asked of the backends."""
    plan = report.job.plan
    told_by = [(f"backend {text.name(name)}", told(facts)) for name, facts in report.backends.items()]
    facts = [
        ("plan", text.name(report.plan.name)),
        ("plan hash", plain(report.plan.hash)),
        ("division", report.division),
        ("label", report.label),
        ("note", plain(plan.note) or "-"),
        *flat(report.harness, "harness"),
        *flat(report.models),
        ("deployment", told(_given(report.job.deployment))),
        ("sampling asked for", told(_given(plan.sampling))),
        ("measure", told(_given(plan.measure))),
        ("oracle", told(_given(plan.oracle))),
        ("statistics", told(_given(plan.stats))),
        *told_by,
    ]
    return [{"what": name, "value": value} for name, value in facts]


def environment(report: Report) -> Rows:
    """Machine, system and packages."""
    return [{"what": name, "value": value} for name, value in flat(report.environment) if name]


def telemetry(report: Report) -> Rows:
    """Readings over the whole run."""
    whole = {name: value for name, value in report.telemetry.items() if name != "blocks"}
    if whole.get("problem") is None:
        whole.pop("problem", None)  # no look failed: nothing to tell
    return [{"what": name, "value": value} for name, value in flat(whole) if name]


def telemetry_by_block(report: Report) -> Rows:
    """Load in the window of each block."""
    blocks = report.telemetry.get("blocks") or ()
    return [
        {text.name(str(name)): told(value) for name, value in block.items()}
        for block in blocks
        if isinstance(block, dict)
    ]


def files(report: Report) -> Rows:
    """The artefacts beside the report."""
    return [{"file": text.name(name), "sha256": plain(digest)} for name, digest in report.files.items()]


def _given(record: object) -> dict[str, object]:
    """Fields of a plan that are set."""
    found: dict[str, object] = msgspec.to_builtins(record)
    return {
        name: {key: item for key, item in value.items() if item is not None}
        if isinstance(value, dict)
        else value
        for name, value in found.items()
        if value is not None
    }
