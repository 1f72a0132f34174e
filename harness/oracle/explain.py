"""Shows a person where a response leaves stock, what stock saw there, and what that means."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from harness.errors import UsageError
from harness.models import resolve_model
from harness.oracle.force import Row, adjusted_rows, force, view
from harness.oracle.judge import agrees, is_near_tie
from harness.oracle.session import Stock, open_stock
from harness.oracle.stops import StopRules, check_end, stop_rules
from harness.oracle.stored import StoredRun, load_run
from harness.protocols import ForcedPosition
from harness.records import PromptLine, Response
from harness.tokenize import PromptTokenizer

BEFORE, AFTER, BEST = 12, 6, 5  # tokens shown around a divergence, and stock's best ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One divergence with all that is needed to tell of it."""

    response: Response
    index: int  # into the emitted ids
    position: ForcedPosition
    best: tuple[tuple[int, float], ...]  # stock's best tokens with their logits, best first
    margin: float


def explain(root: Path, prompt_id: str, arm: str | None = None, *, stock: Stock | None = None) -> str:
    """Where the responses on a prompt leave stock.

    Args:
        root: folder of a finished run.
        prompt_id: as in responses.jsonl.
        arm: only this one; None shows every arm.
        stock: already loaded; None loads what the plan names.

    Raises:
        UsageError: no such prompt or arm in the run.
        DataError: a file of the run cannot be read.
    """
    run = load_run(root)
    line = _prompt(run, prompt_id)
    arms = [a.name for a in run.job.plan.arms]
    if arm is not None and arm not in arms:
        raise UsageError(f"--arm: this run has no arm {arm!r}; it has {', '.join(arms)}")
    model = resolve_model(run.job.deployment.target)
    tokenizer = PromptTokenizer(model.path)
    loaded = stock if stock is not None else open_stock(run.job, model)
    rules = stop_rules(run.job.plan.sampling, loaded.eos_token_ids, loaded.vocab_size)
    parts = [f"prompt {prompt_id} ({len(line.token_ids)} tokens): {_short(line.prompt.turns[0])}"]
    for name in arms if arm is None else [arm]:
        own = [r for r in run.responses if (r.arm, r.prompt_id, r.status) == (name, prompt_id, "ok")]
        groups: dict[tuple[int, ...], list[Response]] = {}
        for response in own:
            groups.setdefault(response.token_ids, []).append(response)
        parts += [
            _explain_group(same, line, rules, loaded, tokenizer, _margin(run)) for same in groups.values()
        ]
        if not own:
            parts.append(f"arm {name}: no finished response on this prompt")
    return "\n\n".join(parts)


def explain_divergence(scene: Scene, token_text: Callable[[int], str]) -> str:
    """One divergence in words and numbers."""
    response, index, position = scene.response, scene.index, scene.position
    ids = response.token_ids
    before = "".join(token_text(t) for t in ids[max(0, index - BEFORE) : index])
    after = "".join(token_text(t) for t in ids[index + 1 : index + 1 + AFTER])
    gap = position.top_logit - position.token_logit
    lines = [
        f"  position {index} of {len(ids)}, {emitted_by(response, index)}",
        f"  text: ...{before!r} [{token_text(position.token_id)!r}] {after!r}...",
        f"  emitted        {_token(position.token_id, token_text)}  logit {position.token_logit:.4f}",
        f"  stock's argmax {_token(position.top_id, token_text)}  logit {position.top_logit:.4f}",
        f"  gap {gap:.4f} logits, margin {scene.margin:.4f}",
        "  stock's best: " + ", ".join(f"{_token(t, token_text)} {v:.3f}" for t, v in scene.best),
        f"  {_meaning(scene)}",
    ]
    return "\n".join(lines)


def emitted_by(response: Response, index: int) -> str:
    """Which step emitted a token, and as what."""
    start = response.prefill_tokens
    if index < start:
        return "emitted by the prefill"
    for number, step in enumerate(response.steps, 1):
        place = index - start
        if place < step.num_emitted_tokens:
            counts = f"{step.num_draft_tokens} drafted, {step.num_accepted_tokens} accepted"
            if place < step.num_accepted_tokens:
                role = f"accepted draft token {place + 1}"
            elif step.num_draft_tokens == 0:
                role = "the token of a step without drafts"
            elif step.num_accepted_tokens == step.num_draft_tokens:
                role = "the bonus token"
            else:
                role = "the recovered token"
            return f"{role} of verify step {number} ({counts})"
        start += step.num_emitted_tokens
    return "emitted by no recorded step"


def _meaning(scene: Scene) -> str:
    position, ids, index = scene.position, scene.response.token_ids, scene.index
    gap = position.top_logit - position.token_logit
    if is_near_tie(position, scene.margin):
        return (
            "near tie: two shapes of stock differ by as much, so either token is stock's; excused while such "
            "places are no more frequent than in stock itself"
        )
    if index and ids[index - 1] == position.token_id:
        hint = "the token repeats the one before it, as when a bonus token is emitted twice"
    elif position.token_logit < position.runner_up_logit and gap <= scene.margin:
        hint = "the gap is small, but rounding can only swap the two best tokens and this one is neither"
    else:
        hint = (
            "no rounding explains this: look at the acceptance rule, the cache after a rejection, positions "
            "and masks of that step"
        )
    return f"not excused: {hint}"


def _explain_group(
    same: Sequence[Response],
    line: PromptLine,
    rules: StopRules,
    stock: Stock,
    tokenizer: PromptTokenizer,
    margin: float,
) -> str:
    """One distinct sequence of an arm, with the responses that emitted it."""
    first = same[0]
    who = ", ".join(f"launch {r.launch} block {r.block}" for r in same)
    lines = [f"arm {first.arm} ({who}), {len(first.token_ids)} tokens:"]
    fault = check_end(first, rules, tokenizer.decode)
    if fault is not None:
        where = "" if fault.position is None else f" at position {fault.position}"
        lines.append(f"  ending not explained{where}: {fault.fault}")
    known = tuple(token for token in first.token_ids if 0 <= token < rules.vocab_size)
    if known != first.token_ids:
        return "\n".join(lines)
    chunks = stock.scorer.logits(line.token_ids, known, None)
    positions = force(chunks, line.token_ids, known, rules, margin).positions
    wrong = [n for n, position in enumerate(positions) if not agrees(position)]
    if not wrong:
        lines.append("  every token is stock's argmax")
    for index in wrong[:3]:
        row = _row_at(stock, line, known, rules, index)
        scene = Scene(
            response=first,
            index=index,
            position=view(row, known[index]),
            best=_best(row),
            margin=margin,
        )
        lines.append(explain_divergence(scene, tokenizer.token_text))
    if len(wrong) > 3:
        lines.append(f"  and {len(wrong) - 3} more positions, the last at {wrong[-1]}")
    return "\n".join(lines)


def _row_at(stock: Stock, line: PromptLine, ids: Sequence[int], rules: StopRules, index: int) -> Row:
    chunks = stock.scorer.logits(line.token_ids, ids, None)
    return next(islice(adjusted_rows(chunks, line.token_ids, ids, rules), index, None))


def _best(row: Row) -> tuple[tuple[int, float], ...]:
    order = np.argsort(-row, kind="stable")[:BEST]
    return tuple((int(token), float(row[token])) for token in order)


def _margin(run: StoredRun) -> float:
    found = run.report.losslessness
    return found.margin.value if found is not None and found.margin is not None else 0.0


def _prompt(run: StoredRun, prompt_id: str) -> PromptLine:
    lines = {line.prompt.prompt_id: line for line in run.prompts}
    if prompt_id not in lines:
        close = difflib.get_close_matches(prompt_id, lines, n=1, cutoff=0.3) or list(lines)[:1]
        raise UsageError(
            f"this run has no prompt {prompt_id!r}; did you mean {close[0] if close else None!r}?"
        )
    return lines[prompt_id]


def _token(token_id: int, token_text: Callable[[int], str]) -> str:
    return f"{token_text(token_id)!r} ({token_id})"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 200 else f"{flat[:200]}..."
