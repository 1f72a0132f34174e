"""Checks of arms that servers run: what a server says of itself against what came over the wire.

Pure. A server, or something in front of it, can count generously, answer from a cache, or switch
speculation off; tokens and times alone show it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from harness.load.told import SAMPLING, uncovered
from harness.plan import ArmSpec, Job
from harness.records import Response
from harness.results import Audit

CLIENT_LIMIT = 0.05  # of the time a token takes may be the client's own
CACHED = 4.0  # so many times as long may strangers take as known prompts, relative to the baseline


def server_audits(
    job: Job, responses: Sequence[Response], facts: Sequence[Mapping[str, Any]]
) -> tuple[Audit, ...]:
    """Audits of every arm whose responses came in chunks; none for other arms.

    Args:
        job: plan and deployment.
        responses: all responses of the run.
        facts: for each launch, what each backend told of itself, with the counters of each arm's
            server over the launch.
    """
    by_arm = {
        arm.name: [r for r in responses if r.arm == arm.name and r.status == "ok"] for arm in job.plan.arms
    }
    baseline = job.plan.baseline
    audits: list[Audit] = []
    for arm in job.plan.arms:
        own = by_arm[arm.name]
        if not any(response.chunks for response in own):
            continue
        told = _told(arm, facts)
        audits += [
            _sampling(arm, told),
            _synthetic(arm, told),
            _usage(arm, own),
            _ids(arm, own),
            _prefix_cache(arm, told),
            _refusals(arm, own),
            _client(arm, own, facts),
        ]
        if not job.plan.sampling.greedy:
            audits.append(_seeded(arm, own))
        if arm.name != baseline.name:
            against = by_arm[baseline.name]
            audits.append(_speculation(arm, told))
            audits.append(_strangers(arm, own, told, against, _told(baseline, facts)))
    return tuple(audits)


def _told(arm: ArmSpec, facts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the server of an arm told, for each launch."""
    return [launch.get(arm.backend, {}).get("arms", {}).get(arm.name, {}) for launch in facts]


def server_warnings(responses: Sequence[Response]) -> tuple[str, ...]:
    """What a reader should know before the verdicts."""
    text = sorted({r.arm for r in responses if r.retokenised})
    return tuple(
        f"arm {name}: the server gave no token ids, so its text was re-tokenised; where the tokenizer cuts "
        "the same text in another way, a violated verdict can come from that alone"
        for name in text
    )


def _sampling(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    """Whether a default of the server could have sampled otherwise than the plan says."""
    name = f"sampled as asked: {arm.name}"
    last: Mapping[str, Any] = told[-1] if told else {}
    sent, words = last.get("request") or {}, last.get("told") or {}
    own, source = words.get("defaults"), words.get("defaults_from")
    of_model = {} if source in ("vllm", "openai") else last.get("model_defaults") or {}
    left = uncovered({**of_model, **(own or {})}, sent)
    tells = f"it takes its sampling defaults from {source!r}" if source else "it tells no sampling defaults"
    if own:
        tells += f", with {', '.join(f'{key} {value}' for key, value in own.items())}"
    missing = [field for field in SAMPLING if field not in sent]
    if left:
        detail = f"{tells}; no field of its API overrides {', '.join(left)}"
    elif missing:
        detail = f"{tells}; its API has no field {', '.join(missing)}, whose defaults are unknown"
    else:
        detail = f"{tells}; every request names every sampling field"
    return Audit(name=name, passed=None if missing else True, detail=detail)


def _synthetic(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    """Engines can accept drafts at a given rate instead of by the target: fast, and not its output."""
    name = f"drafts are verified: {arm.name}"
    words = (told[-1].get("told") if told else None) or {}
    settings = words.get("settings") or {}
    method = settings.get("speculative_config.rejection_sample_method")
    if method is None:
        return Audit(name=name, passed=None, detail="the server does not tell how it accepts drafts")
    return Audit(name=name, passed=method != "synthetic", detail=f"the server tells: {method}")


def _usage(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    """R3 over a server: the counts it bills are those of the ids it sent."""
    name = f"usage is what was sent: {arm.name}"
    told = [r for r in own if r.usage_tokens is not None]
    if not told:
        return Audit(name=name, passed=None, detail="the server tells no usage")
    sent, billed = sum(len(r.token_ids) for r in told), sum(r.usage_tokens or 0 for r in told)
    wrong = [r for r in told if r.usage_tokens != len(r.token_ids)]
    detail = f"{billed} tokens billed, {sent} received in {len(told)} responses"
    if not wrong:
        return Audit(name=name, passed=True, detail=detail)
    first = wrong[0]
    detail += (
        f"; {len(wrong)} responses differ, the first: {first.prompt_id}, {first.usage_tokens} billed, "
        f"{len(first.token_ids)} received"
    )
    if all(r.retokenised for r in wrong):
        return Audit(name=name, passed=None, detail=f"{detail}; the ids are re-tokenised and may differ")
    return Audit(name=name, passed=False, detail=detail)


def _ids(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    text = sum(r.retokenised for r in own)
    return Audit(
        name=f"ids from the server: {arm.name}",
        passed=None if text else True,
        detail=f"{len(own) - text} of {len(own)} responses came with token ids; the others are re-tokenised",
    )


def _speculation(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    """X4 over a server: its own counters, over the measured requests."""
    name = f"speculation on: {arm.name}"
    drafted = _counted(told, "num_draft_tokens")
    if drafted is None:
        return Audit(name=name, passed=None, detail="the server exports no speculation counters")
    accepted, drafts = _counted(told, "num_accepted_tokens") or 0, _counted(told, "num_drafts") or 0
    length = f", acceptance length {1.0 + accepted / drafts:.3f} by its own counters" if drafts else ""
    return Audit(
        name=name,
        passed=drafted > 0,
        detail=f"{drafted} tokens drafted in {drafts} verify steps, {accepted} accepted{length}",
    )


def _prefix_cache(arm: ArmSpec, told: Sequence[Mapping[str, Any]]) -> Audit:
    name = f"no answer from a prefix cache: {arm.name}"
    hits = _counted(told, "prefix_cache_hits")
    if hits is None:
        return Audit(name=name, passed=None, detail="the server exports no prefix-cache counters")
    asked = _counted(told, "prefix_cache_queries")
    return Audit(
        name=name,
        passed=True if hits == 0 else None,
        detail=f"{hits} of {asked if asked is not None else 'unknown'} prompt tokens came from the cache",
    )


def _seeded(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    """Above temperature 0: whether a seed fixes the output. Many servers do not promise it."""
    outputs: dict[str, set[tuple[int, ...]]] = {}
    for response in own:
        outputs.setdefault(response.prompt_id, set()).add(response.token_ids)
    same = sum(len(found) == 1 for found in outputs.values())
    return Audit(
        name=f"repeats its seed: {arm.name}",
        passed=True if same == len(outputs) else None,
        detail=(
            f"{same} of {len(outputs)} prompts gave the same ids every time; where a seed does not fix the "
            "output, the distribution test is all there is"
        ),
    )


def _refusals(arm: ArmSpec, own: Sequence[Response]) -> Audit:
    refused = sum(r.refusals for r in own)
    return Audit(
        name=f"accepted at once: {arm.name}",
        passed=True if not refused else None,
        detail=f"{refused} times a request was answered 429 or 503 first; the waiting counts in its time",
    )


def _client(arm: ArmSpec, own: Sequence[Response], facts: Sequence[Mapping[str, Any]]) -> Audit:
    """What receiving a token costs this client, against the time the server takes for one."""
    name = f"the client keeps up: {arm.name}"
    told = (facts[-1].get(arm.backend) or {}).get("client_overhead") if facts else None
    busy = sum((r.end_ns or 0) for r in own) / 1e9
    tokens = sum(len(r.token_ids) for r in own)
    if not told or not busy or not tokens:
        return Audit(name=name, passed=None, detail="the client's own cost was not measured")
    flying = float(arm.params.get("concurrency", 1.0))
    share = told["microseconds_per_token"] / 1e6 * tokens / busy * flying
    return Audit(
        name=name,
        passed=True if share <= CLIENT_LIMIT else None,
        detail=(
            f"{told['microseconds_per_token']:.1f} us a token against a server that does nothing, "
            f"{share:.1%} of the time that a token took here; limit {CLIENT_LIMIT:.0%}"
        ),
    )


def _strangers(
    arm: ArmSpec,
    own: Sequence[Response],
    told: Sequence[Mapping[str, Any]],
    baseline: Sequence[Response],
    baseline_told: Sequence[Mapping[str, Any]],
) -> Audit:
    """Known prompts may not get their first token much sooner than strangers of the same length."""
    name = f"no answer from a response cache: {arm.name}"
    ours, theirs = _stranger_ratio(own, told), _stranger_ratio(baseline, baseline_told)
    if ours is None or theirs is None:
        return Audit(
            name=name, passed=None, detail="no stranger was met: the launch was not finished in one go"
        )
    return Audit(
        name=name,
        passed=ours <= CACHED * max(1.0, theirs),
        detail=(
            f"prompts never sent before took {ours:.2f} times as long to their first token as prompts of the "
            f"run (median), {theirs:.2f} times in the baseline; the limit is {CACHED:g} times the baseline's"
        ),
    )


def _stranger_ratio(own: Sequence[Response], told: Sequence[Mapping[str, Any]]) -> float | None:
    """Median over prompts: first token of the stranger over the quickest of the prompt it was made from."""
    ratios = []
    for launch, facts in enumerate(told):
        for prompt_id, first in facts.get("strangers", {}).items():
            known = [
                r.first_token_ns
                for r in own
                if r.launch == launch and r.prompt_id == prompt_id and r.first_token_ns is not None
            ]
            if known:
                ratios.append(first / min(known))  # a cache may have been filled by the first block
    return statistics.median(ratios) if ratios else None


def _counted(told: Sequence[Mapping[str, Any]], counter: str) -> int | None:
    """Sum of a counter over launches; None when a launch lacks it."""
    values = [launch.get("counters", {}).get(counter) for launch in told]
    known = [int(value) for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
