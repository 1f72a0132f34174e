"""``specpilot-harness targets``: a vocabulary and a small hybrid target with its drafter."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from reference_mechanisms.drafters.training.running import Draw

EXIT_OK = 0
EXAMPLES, HELD_OUT = "examples.safetensors", "held-out.safetensors"
VOCABULARY_TEXTS = 9000  # that a vocabulary is learnt on
SEED = 1  # of which ones

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
RunCommand = Callable[[argparse.Namespace], int]


class Caller(NamedTuple):
    """What only the command line knows."""

    digest: Callable[[Path], str]  # sha256 of a folder's weights
    counts: Callable[[Sequence[int]], bool]
    commit: Callable[[], str]
    date: Callable[[], str]
    draw: Draw


def register(
    commands: argparse._SubParsersAction[Parser], guard: Callable[[RunCommand], RunCommand], caller: Caller
) -> None:
    """Add the command `targets`.

    Args:
        commands: of the command line.
        guard: turns the errors of a command into those of the command line.
        caller: what the records tell beside.
    """
    group = commands.add_parser("targets", help="train the small hybrid target and its drafter")
    actions = group.add_subparsers(metavar="ACTION", required=True)
    words = actions.add_parser("vocabulary", help="learn a small vocabulary, and put training text into it")
    words.add_argument("data", type=Path, metavar="DATA", help="what `drafters data` wrote")
    words.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of the text's target")
    words.add_argument("--size", type=int, default=4096, help="tokens (default: %(default)s)")
    words.add_argument("--out", type=Path, required=True, metavar="DIR", help="for text and tokenizer")
    words.set_defaults(run=guard(_vocabulary))
    training = actions.add_parser("train-hybrid", help="train a hybrid target, and a drafter on its text")
    training.add_argument("plan", type=Path, help="of the target (.toml)")
    training.add_argument("drafter", type=Path, help="training plan of its drafter (.toml)")
    training.add_argument("--data", type=Path, required=True, metavar="DIR", help="what `vocabulary` wrote")
    training.add_argument("--out", type=Path, required=True, metavar="DIR", help="for target and drafter")
    training.add_argument("--seconds", type=float, help="fewer steps, if it would take longer than this")
    training.add_argument("--eager", action="store_true", help="launch every kernel of the target's steps")
    training.set_defaults(run=guard(lambda options: _train(options, caller)))


def _say(line: str) -> None:
    print(line, flush=True)


def _named(plan: Path) -> str:
    """A plan of this package by its place in it, whoever installed it where."""
    package = Path(__file__).resolve().parents[3]
    here = plan.resolve()
    return (here.relative_to(package) if here.is_relative_to(package) else plan).as_posix()


def _vocabulary(options: argparse.Namespace) -> int:
    import numpy as np  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    from reference_mechanisms.drafters.training.corpus import load, save  # noqa: PLC0415
    from reference_mechanisms.targets.training import vocabulary  # noqa: PLC0415

    old = Tokenizer.from_file(str(options.tokenizer))
    examples, held_out = load(options.data / EXAMPLES), load(options.data / HELD_OUT)
    rows = np.random.default_rng(SEED).permutation(len(examples))[:VOCABULARY_TEXTS].tolist()
    some = vocabulary.chat_texts(examples, old, rows)
    new = vocabulary.learn((text for pair in some for text in pair), options.size)
    options.out.mkdir(parents=True, exist_ok=True)
    vocabulary.store(new, options.out)
    for name, texts in ((EXAMPLES, examples), (HELD_OUT, held_out)):
        found = vocabulary.encoded(texts, old, new, range(len(texts)))
        save(found, options.out / name)
        _say(
            f"{name}: {len(found)} examples, {len(texts.token_ids)} tokens before, {len(found.token_ids)} now"
        )
    return EXIT_OK


def _train(options: argparse.Namespace, caller: Caller) -> int:
    from reference_mechanisms.drafters.training.carding import DataFacts, Story  # noqa: PLC0415
    from reference_mechanisms.drafters.training.corpus import load  # noqa: PLC0415
    from reference_mechanisms.drafters.training.plan import load_plan  # noqa: PLC0415
    from reference_mechanisms.targets.training.plan import load_hybrid_plan  # noqa: PLC0415
    from reference_mechanisms.targets.training.running import Outside, train_hybrid  # noqa: PLC0415

    plan, drafter = load_hybrid_plan(options.plan), load_plan(options.drafter)
    told = [
        "specpilot-harness",
        "targets",
        "train-hybrid",
        _named(options.plan),
        _named(options.drafter),
    ]
    told += ["--data", "DATA", "--out", "RUN"]
    told += [] if options.seconds is None else ["--seconds", f"{options.seconds:g}"]
    nothing = DataFacts(examples=0, left_out=0, repetitions=0, words=8, held_out=0)
    outside = Outside(
        out=options.out,
        tokenizer=options.data,
        seconds=options.seconds,
        digest=caller.digest,
        counts=caller.counts,
        said=_say,
        story=Story(shlex.join(told), caller.commit(), caller.date(), nothing),
        draw=caller.draw,
        recorded=not options.eager,
    )
    texts = load(options.data / EXAMPLES), load(options.data / HELD_OUT)
    train_hybrid(plan, drafter, *texts, outside)
    return EXIT_OK
