"""The model card of a drafter that was just trained, from what the run knows. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from reference_mechanisms.drafters.card import Card, Curve, Data, Source, Stored, Training
from reference_mechanisms.drafters.shipped import TrainedFor
from reference_mechanisms.drafters.storing import Rounding
from reference_mechanisms.drafters.training.corpus import Corpus
from reference_mechanisms.drafters.training.plan import DrafterSpec, TrainingPlan

CURVES = "curves.svg"
UNSTATED = "not stated"
OWN = {  # sources of `dataset.make` that the target thought of itself
    "self chat": "user turns the target wrote",
    "self code": "code tasks the target wrote",
    "self stub": "function stubs made of those tasks",
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `drafters data` tells of the text it wrote; later fields are missing in older ones."""

    examples: int
    left_out: int  # share words with an evaluation set
    repetitions: int  # answers that only repeat themselves, left out too
    words: int
    held_out: int
    disjoint_from: tuple[str, ...] = ()
    written_in: str = ""  # type of the target's weights
    prompts_sha256: str | None = None  # of the file of prompts that others wrote


class Story(NamedTuple):
    """What a run is told about itself for its cards."""

    command: str
    commit: str
    date: str  # ISO 8601
    data: DataFacts


class Ended(NamedTuple):
    """How a run went."""

    machine: str
    seconds: float  # of training, all parts of a run that was gone on with
    stored_sha256: str
    stored_bytes: int
    parameters: int
    roundings: Sequence[Rounding]
    by_set: Mapping[str, float]  # acceptance length on held-out texts, weights as training left them
    by_set_stored: Mapping[str, float]  # the same, weights as stored
    curves: bool  # whether they were drawn


def card_of(
    spec: DrafterSpec,
    plan: TrainingPlan,
    target: TrainedFor,
    texts: tuple[Corpus, Corpus],
    story: Story,
    ended: Ended,
) -> Card:
    """The card.

    Args:
        spec: the drafter's part of the plan.
        plan: the whole.
        target: of the drafter.
        texts: what was learnt from, and what was held out.
        story: what the run was told.
        ended: how it went.
    """
    shown = "Loss and acceptance length over the steps of training."
    return Card(
        schema="drafter-card/1",
        drafter=spec.kind,
        target=target.name,
        target_sha256=target.sha256,
        licence=plan.licence,
        summary=summary(spec, plan.drafts),
        data=_data(plan, *texts, story.data),
        training=_training(spec, plan, story, ended),
        stored=_stored(ended),
        curves=(Curve(file=CURVES, shows=shown),) if ended.curves else (),
        notes=_notes(plan, texts[1], ended),
    )


def summary(spec: DrafterSpec, drafts: int) -> str:
    """What the network is, in a sentence."""
    layers = f"{_number(spec.layers).capitalize()} layer{'' if spec.layers == 1 else 's'}"
    taps = f"over {_number(len(spec.taps))} tap{'' if len(spec.taps) == 1 else 's'} of the target"
    if spec.kind == "eagle3":
        return (
            f"{layers} {taps} that draft{'s' if spec.layers == 1 else ''} token by token; embedding, head "
            "and vocabulary are the target's."
        )
    if spec.kind == "dspark":
        return (
            f"{layers} {taps}, a block of {_number(drafts)} rows that starts at the anchor, a Markov head of "
            f"rank {spec.rank} ({spec.markov}) and a confidence head."
        )
    block = f"a block of {_number(drafts + 1)} rows"
    if spec.kind == "dflash2":
        return (
            f"{layers} with short convolutions {taps}, {block}, and a selector of rank {spec.rank} over the "
            f"best {spec.candidates} tokens of each row."
        )
    return f"{layers} {taps}, {block}: the anchor and {_number(drafts)} drafts at once."


def _data(plan: TrainingPlan, corpus: Corpus, held_out: Corpus, told: DataFacts) -> Data:
    written = corpus.lengths - corpus.prompt_lengths
    sources = []
    for number, source in enumerate(corpus.names):
        mine = corpus.sources == number
        name, licence = _named(source, plan.licence)
        sources.append(
            Source(
                name=name,
                licence=licence,
                conversations=int(mine.sum()),
                tokens=int(written[mine].sum()),
                sha256=None if source in OWN else told.prompts_sha256,
            )
        )
    kind = f" in {told.written_in}" if told.written_in else ""
    return Data(
        sources=tuple(sources),
        written_by=(
            f"the target itself{kind} (its own batched decoder), {_temperatures(corpus)}; answers that only "
            f"repeat themselves ({told.repetitions}) left out"
        ),
        disjoint_from=told.disjoint_from or held_out.names,
        overlap_words=told.words,
        left_out=told.left_out,
        seed=plan.seed,
    )


def _named(source: str, licence: str) -> tuple[str, str]:
    """Name and licence of a source; given ones are called "name (licence)"."""
    if source in OWN:
        return OWN[source], f"written by the target ({licence})"
    found = re.fullmatch(r"(.+?) \(([^()]+)\)", source)
    return (found[1], found[2]) if found else (source, UNSTATED)


def _temperatures(corpus: Corpus) -> str:
    greedy = float((corpus.temperatures == 0.0).mean())
    warm = [f"{value:g}" for value in sorted({round(float(one), 4) for one in corpus.temperatures}) if value]
    if not warm:
        return "greedily"
    among = warm[0] if len(warm) == 1 else f"{', '.join(warm[:-1])} or {warm[-1]}"
    return f"{100 * greedy:.0f} % of the answers greedily, the rest at temperature {among}"


def _training(spec: DrafterSpec, plan: TrainingPlan, story: Story, ended: Ended) -> Training:
    schedule, soft = plan.schedule, spec.soft_share
    aims = [f"the written token ({1 - soft:g})"] if soft < 1 else []
    aims += [f"the distribution of the target ({soft:g})"] if soft > 0 else []
    settings: dict[str, str | int | float | bool] = {
        "anchors_per_sequence": schedule.anchors,
        "drafters trained together": len(plan.drafter),
        "sequences": schedule.sequences,
        "warmup": schedule.warmup,
    }
    if spec.muon_rate is not None:
        settings["muon_rate"] = spec.muon_rate
    if spec.begin_with:
        settings["begun as layers of the target"] = ", ".join(map(str, spec.begin_with))
    return Training(
        command=story.command,
        commit=story.commit,
        machine=ended.machine,
        date=story.date,
        seconds=round(ended.seconds),
        steps=schedule.steps,
        anchors=schedule.sequences * schedule.anchors,
        learning_rate=spec.learning_rate,
        loss=f"cross entropy with {' and '.join(aims)}, draft k weighted exp(-k/{schedule.gamma:g})",
        seed=plan.seed,
        settings=settings,
    )


def _stored(ended: Ended) -> Stored:
    worst = max(ended.roundings, key=lambda one: one.largest)
    return Stored(
        parameters=ended.parameters,
        bytes=ended.stored_bytes,
        sha256=ended.stored_sha256,
        bits={one.name: one.bits for one in ended.roundings},
        largest_error=worst.largest,
        worst_tensor=worst.name,
    )


def _notes(plan: TrainingPlan, held_out: Corpus, ended: Ended) -> tuple[str, ...]:
    count, seconds = len(plan.drafter), f"{ended.seconds:,.0f} s"
    shared = f" together with {count - 1} more, {ended.seconds / count:,.0f} s for each" if count > 1 else ""
    return (
        f"At the end of training, with weights as they were, on the target's greedy answers to "
        f"{len(held_out):,} prompts held out, repetitions left out, by walking over the texts: "
        f"{_lengths(ended.by_set)}.",
        f"The same with weights as stored: {_lengths(ended.by_set_stored)}.",
        f"Trained in {seconds}{shared}.",
    )


def _lengths(by_set: Mapping[str, float]) -> str:
    """Of the sets where a text was left, and the mean of those that are public."""
    known = {name: length for name, length in by_set.items() if not math.isnan(length)}
    told = ", ".join(f"{name} {length:.2f}" for name, length in known.items())
    public = [length for name, length in known.items() if name != "embedded"]
    if len(public) > 1:
        told += f"; mean of {_number(len(public))} sets {sum(public) / len(public):.2f}"
    return told or "no text was left"


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)
