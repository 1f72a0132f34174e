"""Whether acceptance is the target's own, and whether outputs end where they must. Pure.

Settings are read for forced or relaxed acceptance; where they say nothing, the counts still may: drafts
of real text are accepted more easily on some prompts than on others, imposed acceptance is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats as distributions

from harness.forced_acceptance import forced_acceptance, settings_of
from harness.plan import ArmSpec, Job
from harness.records import Response, Sampling
from harness.results import Audit

LEVEL = 0.01  # at which acceptance is shown to hang on the prompt
FEWEST_PROMPTS = 8
FEWEST_STEPS = 200  # over all prompts; below, equal rates mean nothing


def acceptance_audits(
    job: Job,
    responses: Sequence[Response],
    facts: Sequence[Mapping[str, Any]],
    eos_token_ids: Sequence[int],
) -> tuple[Audit, ...]:
    """Settings, spread of acceptance, and ends, of every arm.

    Args:
        job: plan and deployment.
        responses: all responses of the run.
        facts: for each launch, what each backend told of itself.
        eos_token_ids: of the target.
    """
    last = facts[-1] if facts else {}
    audits = []
    for arm in job.plan.arms:
        own = [r for r in responses if r.arm == arm.name and r.status == "ok"]
        if not own:
            continue
        audits.append(ends(arm, own, eos_token_ids, job.plan.sampling))
        if arm.name != job.plan.baseline.name:
            audits.append(unforced(arm, last))
        if arm.kind in ("stock", "candidate") and any(s.num_draft_tokens for r in own for s in r.steps):
            audits.append(hangs_on_prompt(arm, own))
    return tuple(audits)


def unforced(arm: ArmSpec, facts: Mapping[str, Any]) -> Audit:
    """X5: no setting by which drafts are accepted otherwise than by the target."""
    backend = facts.get(arm.backend) or {}
    told = (backend.get("arms") or {}).get(arm.name) or backend
    found = forced_acceptance(settings_of(arm.params, told))
    detail = "no setting of forced or relaxed acceptance among what is told"
    if found:
        detail = "; ".join(f"{one.kind} acceptance by {one.where}: {one.setting}" for one in found)
    return Audit(name=f"acceptance not forced: {arm.name}", passed=not found, detail=detail)


def hangs_on_prompt(arm: ArmSpec, responses: Sequence[Response]) -> Audit:
    """Statistical half of X5: whether accepted tokens a step differ between prompts more than by chance.

    One-way test of equal means over prompts (Welch's would need normal counts; the chi-square of the
    standardised means does not), on the first response to each prompt. Passing shows that acceptance
    hangs on the text. Not passing shows nothing by itself, so it gives no verdict.
    """
    name = f"acceptance hangs on the prompt: {arm.name}"
    first: dict[str, Response] = {}
    for response in sorted(responses, key=lambda r: (r.launch, r.block)):
        if len(response.steps) > 1:
            first.setdefault(response.prompt_id, response)
    counts = [np.array([step.num_accepted_tokens for step in r.steps[:-1]]) for r in first.values()]
    pooled = np.concatenate(counts) if counts else np.array([])
    if len(counts) < FEWEST_PROMPTS or len(pooled) < FEWEST_STEPS or float(np.var(pooled)) == 0.0:
        detail = f"{len(pooled)} verify steps on {len(counts)} prompts are too few, or all alike, to tell"
        return Audit(name=name, passed=None, detail=detail)
    variance = float(np.var(pooled, ddof=1))
    spread = sum(len(own) * (float(own.mean()) - float(pooled.mean())) ** 2 for own in counts) / variance
    p_value = float(distributions.chi2.sf(spread, len(counts) - 1))
    detail = (
        f"accepted tokens a step differ between {len(counts)} prompts {spread / (len(counts) - 1):.2f} times "
        f"as much as by chance (p {p_value:.2g})"
    )
    if p_value < LEVEL:
        return Audit(name=name, passed=True, detail=detail)
    detail += "; equal acceptance on all texts is what forced acceptance looks like: read its settings"
    return Audit(name=name, passed=None, detail=detail)


def ends(arm: ArmSpec, responses: Sequence[Response], eos: Sequence[int], sampling: Sampling) -> Audit:
    """R3: at most one EOS, as the last token; the budget is kept, and used up where it ends an output."""
    inside = over = short = 0
    for response in responses:
        ids = response.token_ids
        if not sampling.ignore_eos and not response.retokenised and sampling.min_tokens == 0:
            inside += any(token in eos for token in ids[:-1])
        over += len(ids) > sampling.max_tokens
        short += response.finish_reason == "length" and len(ids) < sampling.max_tokens
    wrong = inside + over + short
    detail = (
        f"{len(responses)} responses end with an EOS, a stop or the budget of {sampling.max_tokens} tokens"
    )
    if wrong:
        detail = (
            f"{inside} responses go on after an EOS, {over} exceed {sampling.max_tokens} tokens, {short} say "
            "'length' before it"
        )
    return Audit(name=f"ends where it must: {arm.name}", passed=not wrong, detail=detail)
