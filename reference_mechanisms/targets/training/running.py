"""A whole run: the target learns, is stored, writes text, and its drafter learns from that."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from reference_mechanisms.drafters.shipped import TrainedFor
from reference_mechanisms.drafters.training.carding import DataFacts, Story
from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather
from reference_mechanisms.drafters.training.loop import train
from reference_mechanisms.drafters.training.plan import TrainingPlan
from reference_mechanisms.drafters.training.running import (
    Draw,
    Run,
    TrainingTarget,
    run_plan,
    schedule_of,
    student,
)
from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.config import read_json
from reference_mechanisms.targets.hybrid_config import parse_hybrid_config
from reference_mechanisms.targets.training.network import HybridNetwork
from reference_mechanisms.targets.training.plan import HybridPlan
from reference_mechanisms.targets.training.pretraining import LossPoint, pretrain
from reference_mechanisms.targets.training.storing import described, load_network, store_target
from reference_mechanisms.targets.training.teaching import load_any_teacher, write_greedily
from reference_mechanisms.targets.training.vocabulary import END_ID

TARGET_SHARE = 0.55  # of the time, for the target
DRAFTER_SHARE = 0.8  # of what is then left, for the drafter's steps; the rest measures and stores
RECORD = "training.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TRIAL = (
    64,
    96,
)  # steps: up to the first all widths of batches have been met, up to the second they are timed
FEWEST = 0.1  # share of texts that repeat nothing; with fewer, all are learnt from


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a run is told and asks for."""

    out: Path
    tokenizer: Path  # folder
    seconds: float | None  # for everything; None: as the plans say
    digest: Callable[[Path], str]  # sha256 of a folder's weights, as the harness computes it
    counts: Callable[[Sequence[int]], bool]  # whether a text says something
    said: Callable[[str], None]
    story: Story  # for the cards; what it says of the data is replaced
    draw: Draw
    device: str | None = None
    recorded: bool = True  # steps of the target as a CUDA graph, on a GPU


def train_hybrid(
    plan: HybridPlan, drafter: TrainingPlan, corpus: Corpus, held_out: Corpus, outside: Outside
) -> Path:
    """Train target and drafter; the folder of the target.

    A target that is there already, of the same plan and as much text, is taken as it is.

    Args:
        plan: of the target.
        drafter: of its drafter.
        corpus: chats in the ids of the tokenizer.
        held_out: chats whose prompts acceptance is measured on; none of them in the corpus.
        outside: the rest.

    Raises:
        TargetError: the plan is of no hybrid target, or its vocabulary is not the tokenizer's.
    """
    began = time.monotonic()
    device = torch.device(outside.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    raw = described(msgspec.structs.asdict(plan.sizes))
    config = parse_hybrid_config(raw, f"plan {plan.name}")
    if int(corpus.token_ids.max()) >= config.vocab_size:
        raise TargetError(
            f"`sizes.vocab_size` is {config.vocab_size}, the text has larger ids; encode it anew"
        )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    folder = outside.out / plan.name
    if not _is_there(folder, plan, corpus):
        _train_target(plan, drafter.licence, corpus, held_out, outside, device)
    sha256 = outside.digest(folder)
    stored = load_network(folder, dtype, device)
    outside.said(f"target {sha256[:12]}, {time.monotonic() - began:.0f} s so far")
    text, kept_out, repeated = _own_text(stored, plan, corpus, held_out, outside)
    outside.said(
        f"{len(text)} own texts, {repeated} repetitions left out, {time.monotonic() - began:.0f} s so far"
    )
    target = TrainingTarget(folder, TrainedFor(plan.name, sha256), (END_ID,))
    if outside.seconds is not None:
        left = DRAFTER_SHARE * (outside.seconds - (time.monotonic() - began))
        drafter = _fitted(drafter, target, text, device, left)
    facts = DataFacts(
        examples=len(text),
        left_out=0,
        repetitions=repeated,
        words=8,
        held_out=len(kept_out),
        disjoint_from=held_out.names,
        written_in=str(dtype).removeprefix("torch."),
    )
    run = Run(
        out=outside.out,
        said=outside.said,
        counts=outside.counts,
        device=outside.device,
        story=outside.story._replace(data=facts),
        draw=outside.draw,
    )
    run_plan(drafter, sha256, target, text, kept_out, run)
    outside.said(f"done after {time.monotonic() - began:.0f} s")
    return folder


def _is_there(folder: Path, plan: HybridPlan, corpus: Corpus) -> bool:
    """Whether a target stands there that was trained by this plan on as much text."""
    record = folder / RECORD
    if not record.is_file() or not (folder / "README.md").is_file():  # written last
        return False
    told = read_json(record)
    learnt = (told.get("plan"), (told.get("corpus") or {}).get("tokens"))
    return learnt == (msgspec.to_builtins(plan), len(corpus.token_ids))


def _train_target(
    plan: HybridPlan, licence: str, corpus: Corpus, held_out: Corpus, outside: Outside, device: torch.device
) -> None:
    """Train and store the target with its record and card."""
    began = time.monotonic()
    raw = described(msgspec.structs.asdict(plan.sizes))
    config = parse_hybrid_config(raw, f"plan {plan.name}")
    network = HybridNetwork(config, plan.seed).to(device)
    weights = sum(weight.numel() for weight in network.parameters())
    outside.said(f"{weights} weights, {len(corpus.token_ids)} tokens to learn")
    seconds = None if outside.seconds is None else TARGET_SHARE * outside.seconds
    curve: list[LossPoint] = []
    steps = 0
    for point, steps in pretrain(
        network, corpus, plan.pretraining, plan.seed, seconds, recorded=outside.recorded
    ):
        curve.append(point)
        outside.said(f"step {point.step} of {steps}, loss {point.loss:.3f}")
    took = time.monotonic() - began
    folder = outside.out / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    store_target(network, raw, folder)
    for name in TOKENIZER:
        shutil.copyfile(outside.tokenizer / name, folder / name)
    sha256 = outside.digest(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    stored = load_network(folder, dtype, device)
    told: dict[str, Any] = {
        "plan": msgspec.to_builtins(plan),
        "command": outside.story.command,
        "commit": outside.story.commit,
        "date": outside.story.date,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "weights": weights,
        "weights_sha256": sha256,
        "steps": steps,
        "seconds": round(took, 1),
        "tokens_learnt": steps * plan.pretraining.sequences * plan.pretraining.positions,
        "corpus": {"examples": len(corpus), "tokens": len(corpus.token_ids), "sources": corpus.names},
        "held_out_loss": held_out_loss(stored, held_out),
        "curve": [asdict(point) for point in curve],
    }
    outside.said(
        f"target {sha256[:12]}: {steps} steps in {took:.0f} s, held-out {told['held_out_loss']:.3f} nats"
    )
    (folder / RECORD).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(plan, told, licence), encoding="utf-8")


@torch.no_grad()
def held_out_loss(network: HybridNetwork, texts: Corpus) -> float:
    """Nats a token on the answers of texts held out."""
    total, count, starts = 0.0, 0, texts.starts()
    device = network.embed_tokens.weight.device
    for number in range(0, len(texts), max(1, len(texts) // 96)):
        begin, prompt = starts[number], int(texts.prompt_lengths[number])
        ids = torch.from_numpy(texts.token_ids[begin : begin + texts.lengths[number]].astype(np.int64)).to(
            device
        )
        if len(ids) <= prompt:
            continue
        logits = network.logits(network(ids[None, :-1]).hidden)[0, prompt - 1 :].float()
        total += float(torch.nn.functional.cross_entropy(logits, ids[prompt:], reduction="sum"))
        count += len(ids) - prompt
    return total / max(count, 1)


def _own_text(
    network: HybridNetwork, plan: HybridPlan, corpus: Corpus, held_out: Corpus, outside: Outside
) -> tuple[Corpus, Corpus, int]:
    """Text of the target behind prompts of both; how many were left out as repeating themselves."""
    spec = plan.writing
    limit = network.config.max_positions - spec.new_tokens
    asked = _prompts(corpus, spec.prompt_tokens)
    order = np.random.default_rng(plan.seed).permutation(len(asked))[: spec.prompts]
    chosen = [asked[number] for number in order]

    def write(prompts: Sequence[tuple[tuple[int, ...], str]]) -> list[Example]:
        ids = [prompt for prompt, _ in prompts]
        texts = write_greedily(network, ids, spec.new_tokens, spec.together)
        return [Example(p, text, name, 0.0) for (p, name), text in zip(prompts, texts, strict=True)]

    every = write(chosen)
    sound = [one for one in every if outside.counts(one.text)]
    outside.said(f"{len(sound)} of {len(every)} texts do not only repeat themselves")
    text = sound if len(sound) >= FEWEST * len(every) else every
    kept_out = write(_prompts(held_out, limit, once=False))
    return gather(text), gather(kept_out), len(every) - len(text)


def _prompts(corpus: Corpus, longest: int, *, once: bool = True) -> list[tuple[tuple[int, ...], str]]:
    """Prompts of a corpus with their sources, equal ones once."""
    starts = corpus.starts()
    found: dict[object, tuple[tuple[int, ...], str]] = {}
    for number in range(len(corpus)):
        size = int(corpus.prompt_lengths[number])
        if size <= longest:
            prompt = tuple(corpus.token_ids[starts[number] : starts[number] + size].tolist())
            found.setdefault(prompt if once else number, (prompt, corpus.names[corpus.sources[number]]))
    return list(found.values())


def _fitted(
    plan: TrainingPlan, target: TrainingTarget, text: Corpus, device: torch.device, seconds: float
) -> TrainingPlan:
    """The plan with fewer steps, if its steps would take longer than so many seconds."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    teacher = load_any_teacher(target.folder, dtype, device)
    tried = [student(spec, plan, teacher) for spec in plan.drafter]
    began = time.monotonic()
    ticks = {0: began}
    schedule = dataclasses.replace(schedule_of(plan), steps=TRIAL[1])
    for step in train(tried, teacher, text, schedule):
        if step in TRIAL:
            if device.type == "cuda":
                torch.cuda.synchronize()
            ticks[step] = time.monotonic()
    each = (ticks[TRIAL[1]] - ticks[TRIAL[0]]) / (TRIAL[1] - TRIAL[0])
    started = max(0.0, ticks[TRIAL[0]] - began - TRIAL[0] * each)  # recording, again in the run itself
    left = seconds - (time.monotonic() - began) - started
    steps = min(plan.schedule.steps, max(TRIAL[1], int(left / each)))
    return msgspec.structs.replace(plan, schedule=msgspec.structs.replace(plan.schedule, steps=steps))


def _card(plan: HybridPlan, told: dict[str, Any], licence: str) -> str:
    sizes, corpus, last = plan.sizes, told["corpus"], told["curve"][-1]["loss"]
    machine = f"{told['device']}, torch {told['torch']}, {told['date']}, commit {told['commit']}"
    lines = (
        f"# {plan.name}",
        "",
        f"A hybrid target of {told['weights']:,} weights: {sizes.num_hidden_layers} layers of width",
        f"{sizes.hidden_size} in the layout of Qwen3-Next (`Qwen3NextForCausalLM`, dense), Gated DeltaNet in",
        "three of four and gated full attention in every fourth, stored in bfloat16. It is for verification",
        "on recurrent targets with real weights; as an assistant it is of no use.",
        "",
        f"- Trained by this project from noise (seed {plan.seed}) on {corpus['examples']:,} chats of",
        f"  {corpus['tokens']:,} tokens, whose answers SmolLM2-135M-Instruct wrote; prompts that share eight",
        "  words in a row with an evaluation set were left out.",
        f"- Sources of the prompts: {', '.join(corpus['sources'])}.",
        f"- {told['steps']:,} steps, {told['tokens_learnt']:,} tokens, {told['seconds']:.0f} s on {machine}.",
        f"- Command: `{told['command']}`.",
        f"- Last loss {last:.3f} nats a token; {told['held_out_loss']:.3f} on answers held out.",
        f"- Vocabulary: {sizes.vocab_size:,} tokens, byte-level BPE learnt on the same text.",
        f"- sha256 of the weights: `{told['weights_sha256']}`. Licence: {licence}.",
        "",
        f"`{RECORD}` holds the plan and the curve.",
    )
    return "\n".join(lines) + "\n"
