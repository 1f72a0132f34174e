"""A whole training run: from plan and corpus to stored drafters, with everything to go on after a stop."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.card import write_card
from reference_mechanisms.drafters.loading import Network, build, load_drafter
from reference_mechanisms.drafters.publishing import published
from reference_mechanisms.drafters.shipped import TARGET, TrainedFor
from reference_mechanisms.drafters.storing import Rounding, store
from reference_mechanisms.drafters.training.batches import Shape, batches
from reference_mechanisms.drafters.training.beginning import begin
from reference_mechanisms.drafters.training.carding import CURVES, Ended, Story, card_of
from reference_mechanisms.drafters.training.corpus import Corpus
from reference_mechanisms.drafters.training.inputs import inputs_of
from reference_mechanisms.drafters.training.loop import Point, Schedule, Student, point, sizes, train
from reference_mechanisms.drafters.training.measuring import Walked, summed, walk
from reference_mechanisms.drafters.training.models import config_of
from reference_mechanisms.drafters.training.optimizing import Optimizing
from reference_mechanisms.drafters.training.plan import DrafterSpec, TrainingPlan
from reference_mechanisms.drafters.training.states import Curves, Reached, load_state, save_state
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.targets.training.teaching import AnyTeacher, load_any_teacher

RECORD = "training.json"
WEIGHTS = "model.safetensors"
SAVE_SECONDS = 150
ROUNDING_BATCHES = 4  # whose rows four-bit rounding looks at

# name of a drafter, steps, losses, acceptance lengths -> an SVG document
Draw = Callable[[str, Sequence[int], Sequence[float], Sequence[float]], str]


class TrainingTarget(NamedTuple):
    """The target that drafters are trained for."""

    folder: Path
    trained_for: TrainedFor
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run reads and writes, and how it may end early."""

    out: Path
    resume: bool = False
    seconds: float | None = None  # stop after so long, with a state to go on from
    said: Callable[[str], None] = lambda _line: None
    counts: Callable[[Sequence[int]], bool] = lambda _text: True  # whether a text is one to measure on
    device: str | None = None  # None: a GPU if there is one
    story: Story | None = None  # for the model cards; None: none are written
    draw: Draw | None = None  # the curves of a card; None: it has none


@dataclass(slots=True)
class _Measured:
    step: int
    drafter: str
    acceptance_length: float
    survival: tuple[float, ...]
    by_set: dict[str, float]


def run_plan(
    plan: TrainingPlan, plan_sha256: str, target: TrainingTarget, corpus: Corpus, held_out: Corpus, run: Run
) -> bool:
    """Train every drafter of a plan.

    Args:
        plan: what to train.
        plan_sha256: of the plan and the corpus; a state of another one is not gone on from.
        target: of the drafters.
        corpus: what to learn from.
        held_out: prompts and greedy texts of the target to measure acceptance on; none of it in the corpus.
        run: where and how long.

    Returns:
        Whether it came to its end; else run it again with `resume`.

    Raises:
        DrafterError: the plan does not fit the target, or there is nothing to train on.
    """
    if not len(corpus):
        raise DrafterError("the corpus is empty; write one with `drafters data`")
    device = torch.device(run.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    teacher = load_any_teacher(target.folder, dtype, device)
    students = [student(spec, plan, teacher) for spec in plan.drafter]
    run.said(f"{corpus.written} tokens to learn from; weights: {dict(sizes(students))}")
    curves: Curves = {one.name: [] for one in students}
    first, before = 0, 0.0
    if run.resume:
        first, curves, before = load_state(run.out, students, plan_sha256)
        run.said(f"going on from step {first}")
    schedule = schedule_of(plan)
    every = max(1, schedule.steps // plan.schedule.points)
    some = held_out.only(range(0, len(held_out), max(1, len(held_out) // plan.schedule.measured)))
    measured: list[_Measured] = []
    began = saved = time.monotonic()
    done = first
    for done in train(students, teacher, corpus, schedule, first, lambda _step: _over(began, run.seconds)):
        if done % every == 0 or done == schedule.steps:
            for one in students:
                curves[one.name].append(point(one, done))
                run.said(_line(one.name, schedule.steps, curves[one.name][-1]))
        if plan.schedule.measures and done % (1 + schedule.steps // (plan.schedule.measures + 1)) == 0:
            measured += [_measure(one.name, one.model, teacher, some, plan, done, run) for one in students]
        if time.monotonic() - saved > SAVE_SECONDS:
            saved = time.monotonic()
            save_state(run.out, students, plan_sha256, Reached(done, curves, before + saved - began))
    seconds = before + time.monotonic() - began
    save_state(run.out, students, plan_sha256, Reached(done, curves, seconds))
    if done < schedule.steps:
        run.said(f"stopped at step {done} of {schedule.steps}; go on with --resume")
        return False
    for spec, one in zip(plan.drafter, students, strict=True):
        measured.append(_measure(one.name, one.model, teacher, held_out, plan, done, run))
        told = {
            "plan": plan.name,
            "plan_sha256": plan_sha256,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "corpus": _told(corpus),
            "curve": [asdict(one_point) for one_point in curves[one.name]],
            "measured": [asdict(found) for found in measured if found.drafter == one.name],
        }
        folder = run.out / one.name
        met = _inputs(one, spec, teacher, corpus, schedule)
        roundings = _store(one, spec, teacher, target, folder, met)
        told["stored"] = [rounding._asdict() for rounding in roundings]
        back = load_drafter(folder, torch.float32, device)
        run.said(f"{one.name}: as stored")
        as_stored = _measure(one.name, back, teacher, held_out, plan, done, run)
        told["measured_as_stored"] = asdict(as_stored)
        (folder / RECORD).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        if run.story is not None:
            weights = (folder / WEIGHTS).read_bytes()
            ended = Ended(
                machine=_machine(device),
                seconds=seconds,
                stored_sha256=hashlib.sha256(weights).hexdigest(),
                stored_bytes=len(weights),
                parameters=sum(tensor.numel() for tensor in back.state_dict().values()),
                roundings=roundings,
                by_set=measured[-1].by_set,
                by_set_stored=as_stored.by_set,
                curves=_drawn(one.name, curves[one.name], folder, run.draw),
            )
            texts = (corpus, held_out)
            write_card(card_of(spec, plan, target.trained_for, texts, run.story, ended), folder)
    return True


def student(spec: DrafterSpec, plan: TrainingPlan, teacher: AnyTeacher) -> Student:
    """A drafter at its beginning."""
    config = config_of(spec, teacher.config, plan.drafts, plan.mask_token)
    network = build(config, "cpu")
    begin(network, teacher, spec.begin_with, plan.seed)
    optimizing = Optimizing(learning_rate=spec.learning_rate, muon_rate=spec.muon_rate)
    model = network.float().to(teacher.device).train()
    return Student(spec.name, model, optimizing, spec.soft_share)


def schedule_of(plan: TrainingPlan) -> Schedule:
    """How long, in what batches."""
    spec = plan.schedule
    shape = Shape(sequences=spec.sequences, anchors=spec.anchors, drafts=plan.drafts, longest=spec.longest)
    return Schedule(steps=spec.steps, shape=shape, warmup=spec.warmup, gamma=spec.gamma, seed=plan.seed)


def _over(began: float, seconds: float | None) -> bool:
    return seconds is not None and time.monotonic() - began > seconds


def _line(name: str, steps: int, last: Point) -> str:
    length = f"acceptance length on training texts {last.acceptance_length:.3f}"
    return f"{name}: step {last.step} of {steps}, loss {last.loss:.3f}, {length}"


def _measure(
    name: str,
    model: Network,
    teacher: AnyTeacher,
    texts: Corpus,
    plan: TrainingPlan,
    step: int,
    run: Run,
) -> _Measured:
    model.eval()
    with torch.autocast(teacher.device.type, torch.bfloat16, enabled=teacher.device.type == "cuda"):
        walked = [found for found in walk(model, teacher, texts, plan.drafts) if run.counts(found.text)]
    model.train()
    whole = summed(walked, plan.drafts)
    by_set = {one: _length(walked, one, plan.drafts) for one in texts.names}
    run.said(f"{name}: step {step}, acceptance length {whole.length:.3f} on {len(walked)} texts held out")
    return _Measured(step, name, whole.length, whole.survival, by_set)


def _length(walked: Sequence[Walked], name: str, drafts: int) -> float:
    return summed([found for found in walked if found.source == name], drafts).length


def _told(corpus: Corpus) -> dict[str, Any]:
    counts = {name: int((corpus.sources == number).sum()) for number, name in enumerate(corpus.names)}
    return {"examples": counts, "written_tokens": corpus.written, "tokens": len(corpus.token_ids)}


def _inputs(
    one: Student, spec: DrafterSpec, teacher: AnyTeacher, corpus: Corpus, schedule: Schedule
) -> dict[str, Tensor]:
    """What its matrices meet on some of the text; nothing where no matrix is rounded to four bits."""
    if 4 not in spec.bits.values():
        return {}
    drawn = batches(corpus, schedule.shape, schedule.seed, 0, teacher.device)
    return inputs_of(one.model.eval(), teacher, (next(drawn) for _ in range(ROUNDING_BATCHES)))


def _store(
    one: Student,
    spec: DrafterSpec,
    teacher: AnyTeacher,
    target: TrainingTarget,
    folder: Path,
    inputs: dict[str, Tensor],
) -> Sequence[Rounding]:
    network = one.model.cpu().eval()
    raw = published(network.config, teacher.config.max_positions)
    return store(network, {**raw, TARGET: target.trained_for.declaration()}, folder, spec.bits, inputs)


def _drawn(name: str, points: Sequence[Point], folder: Path, draw: Draw | None) -> bool:
    """Put the picture of a curve into the folder, if there is a curve and someone to draw it."""
    if draw is None or not points:
        return False
    steps, losses = [one.step for one in points], [one.loss for one in points]
    picture = draw(name, steps, losses, [one.acceptance_length for one in points])
    (folder / CURVES).write_text(picture, encoding="utf-8")
    return True


def _machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
    return f"{name}, torch {torch.__version__}"
