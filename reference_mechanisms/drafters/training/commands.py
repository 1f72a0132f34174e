"""``specpilot-harness drafters data`` and ``drafters train``."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from reference_mechanisms.errors import DrafterError

if TYPE_CHECKING:
    from reference_mechanisms.drafters.training.carding import DataFacts
    from reference_mechanisms.drafters.training.running import Draw, TrainingTarget

EXIT_OK = 0
EXIT_UNFINISHED = 1
EXAMPLES = "examples.safetensors"
HELD_OUT = "held-out.safetensors"
FACTS = "data.json"
HELD_OUT_PROMPTS = 64  # of each evaluation set, its first ones

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
RunCommand = Callable[[argparse.Namespace], int]
Resolve = Callable[[str], "TrainingTarget"]  # name of a deployment -> its target
# folder of original files or None -> prompts of the evaluation sets by set
Evaluation = Callable[[Path | None], Mapping[str, Sequence[str]]]


class Outside(NamedTuple):
    """What cards tell and only the command line knows."""

    commit: Callable[[], str]  # of this repository
    date: Callable[[], str]  # today, ISO 8601
    draw: Draw  # a training curve


def register(
    actions: argparse._SubParsersAction[Parser],
    guard: Callable[[RunCommand], RunCommand],
    resolve: Resolve,
    evaluation: Evaluation,
    counts: Callable[[Sequence[int]], bool],
    outside: Outside,
) -> None:
    """Add the two actions.

    Args:
        actions: of the command `drafters`.
        guard: turns the errors of a command into those of the command line.
        resolve: finds the target of a deployment.
        evaluation: prompts that must not be in the training text.
        counts: whether a text is one to learn from and to measure acceptance on.
        outside: what the cards of trained drafters tell beside.
    """
    data = actions.add_parser("data", help="let the target write training text for its drafters")
    data.add_argument("plan", type=Path, help="a training plan (.toml)")
    data.add_argument("--deployment", required=True, help="whose target it is; a name or a .toml file")
    data.add_argument("--prompts", type=Path, required=True, help="JSON lines with `source` and `prompt`")
    data.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")
    data.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the text")
    data.set_defaults(run=guard(lambda options: _data(options, resolve, evaluation, counts)))

    training = actions.add_parser("train", help="train the drafters of a plan on such text")
    training.add_argument("plan", type=Path, help="a training plan (.toml)")
    training.add_argument("--deployment", required=True, help="whose target it is; a name or a .toml file")
    training.add_argument("--data", type=Path, required=True, metavar="DIR", help="what `data` wrote")
    training.add_argument("--out", type=Path, required=True, metavar="DIR", help="for states and drafters")
    training.add_argument("--resume", action="store_true", help="go on where the run in --out stopped")
    training.add_argument("--minutes", type=float, help="stop after so long; go on later with --resume")
    training.set_defaults(run=guard(lambda options: _train(options, resolve, counts, outside)))


def _say(line: str) -> None:
    print(line, flush=True)


def _data(
    options: argparse.Namespace,
    resolve: Resolve,
    evaluation: Evaluation,
    counts: Callable[[Sequence[int]], bool],
) -> int:
    import torch  # noqa: PLC0415

    from reference_mechanisms.drafters.training import corpus, dataset, prompts, writing  # noqa: PLC0415
    from reference_mechanisms.drafters.training.chat import TemplateChat  # noqa: PLC0415
    from reference_mechanisms.drafters.training.plan import load_plan  # noqa: PLC0415
    from reference_mechanisms.drafters.training.teacher import load_teacher  # noqa: PLC0415

    plan = load_plan(options.plan)
    given = _given(options.prompts)
    sets = evaluation(options.evals_dir)
    target = resolve(options.deployment)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teacher = load_teacher(target.folder, torch.bfloat16 if device.type == "cuda" else torch.float32, device)
    chat = TemplateChat(target.folder)
    recipe = dataset.recipe_of(plan.text)
    examples = dataset.make(teacher, chat, given, recipe, target.stop_ids, plan.seed, _say)
    forbidden = prompts.forbidden_runs(sets)
    odd = set(prompts.overlapping((chat.decode(one.prompt) for one in examples), forbidden))
    new = [one for number, one in enumerate(examples) if number not in odd]
    _say(f"{len(odd)} examples share {prompts.OVERLAP_WORDS} words in a row with an evaluation set: left out")
    kept = [one for one in new if counts(one.text)]
    _say(f"{len(new) - len(kept)} examples only repeat themselves: left out")
    options.out.mkdir(parents=True, exist_ok=True)
    corpus.save(corpus.gather(kept), options.out / EXAMPLES)
    asked = [(name, chat.encode(text)) for name, texts in sets.items() for text in texts[:HELD_OUT_PROMPTS]]
    limits = writing.Limits(new_tokens=256, stop_ids=target.stop_ids, columns=recipe.columns // 4)
    precise = teacher
    if teacher.dtype != torch.float32:
        precise = load_teacher(target.folder, torch.float32, device)
    texts = writing.write(precise, [writing.Task(ids, 0.0) for _, ids in asked], limits, plan.seed)
    held_out = [corpus.Example(ids, text, name, 0.0) for (name, ids), text in zip(asked, texts, strict=True)]
    corpus.save(corpus.gather(held_out), options.out / HELD_OUT)
    facts = {
        "examples": len(kept),
        "left_out": len(odd),
        "repetitions": len(new) - len(kept),
        "words": prompts.OVERLAP_WORDS,
        "held_out": len(texts),
        "disjoint_from": list(sets),
        "written_in": str(teacher.dtype).removeprefix("torch."),
        "prompts_sha256": hashlib.sha256(options.prompts.read_bytes()).hexdigest(),
    }
    (options.out / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return EXIT_OK


def _train(
    options: argparse.Namespace, resolve: Resolve, counts: Callable[[Sequence[int]], bool], outside: Outside
) -> int:
    from reference_mechanisms.drafters.training import corpus  # noqa: PLC0415
    from reference_mechanisms.drafters.training.carding import Story  # noqa: PLC0415
    from reference_mechanisms.drafters.training.plan import load_plan  # noqa: PLC0415
    from reference_mechanisms.drafters.training.running import Run, run_plan  # noqa: PLC0415

    plan = load_plan(options.plan)
    told = _facts(options.data / FACTS)
    data = _bytes(options.data / EXAMPLES)
    digest = hashlib.sha256(options.plan.read_bytes())
    digest.update(data)
    examples = corpus.parse(data, str(options.data / EXAMPLES))
    del data  # as large as the corpus
    held_out = corpus.load(options.data / HELD_OUT)
    told_as = ("--deployment", options.deployment, "--data", "DATA", "--out", "RUN")
    command = ("specpilot-harness", "drafters", "train", options.plan.as_posix(), *told_as)
    run = Run(
        out=options.out,
        resume=options.resume,
        seconds=None if options.minutes is None else 60 * options.minutes,
        said=_say,
        counts=counts,
        story=Story(shlex.join(command), outside.commit(), outside.date(), told),
        draw=outside.draw,
    )
    done = run_plan(plan, digest.hexdigest(), resolve(options.deployment), examples, held_out, run)
    return EXIT_OK if done else EXIT_UNFINISHED


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DrafterError(f"cannot read {path}: {error.strerror}; write it with `drafters data`") from None


def _facts(path: Path) -> DataFacts:
    from reference_mechanisms.drafters.training.carding import DataFacts  # noqa: PLC0415

    try:
        return msgspec.json.decode(_bytes(path), type=DataFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DrafterError(f"{path}: {error}; write it with `drafters data`") from None


def _given(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DrafterError(f"cannot read {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise DrafterError(f"{path} line {number} is not JSON") from None
        if not isinstance(row, dict) or not all(
            isinstance(row.get(key), str) for key in ("source", "prompt")
        ):
            raise DrafterError(f"{path} line {number}: needs the text fields `source` and `prompt`")
        found.append((row["source"], row["prompt"]))
    return found
