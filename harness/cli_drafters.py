"""``specpilot-harness drafters``: the part of the command line where drafters, sets and reports meet."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import EXIT_OK, EXIT_VIOLATED, UsageError
from harness.stats.degenerate import degenerate

if TYPE_CHECKING:
    from harness.results import Report
    from reference_mechanisms.drafters.training.running import TrainingTarget

PUBLIC_SEED = 1  # of the draw of held-out prompts, that of the plans for trained drafters

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
Run = Callable[[argparse.Namespace], int]


def add_drafters(commands: argparse._SubParsersAction[Parser], guard: Callable[[Run], Run]) -> None:
    """Add the command `drafters`.

    Args:
        commands: of the command line.
        guard: turns the errors of the mechanisms into the harness's.
    """
    from reference_mechanisms.drafters.commands import register  # noqa: PLC0415
    from reference_mechanisms.drafters.training.commands import Outside  # noqa: PLC0415
    from reference_mechanisms.drafters.training.commands import register as register_training  # noqa: PLC0415

    actions = register(commands, guard)
    register_training(
        actions,
        guard,
        _training_target,
        _evaluation_prompts,
        _says_something,
        Outside(_commit, _today, _curves),
    )
    from reference_mechanisms.targets.training.commands import Caller  # noqa: PLC0415
    from reference_mechanisms.targets.training.commands import register as register_targets  # noqa: PLC0415

    register_targets(commands, guard, Caller(_tied_digest, _says_something, _commit, _today, _curves))
    summary = actions.add_parser("summary", help="figures of trained drafters from a report, for scripts")
    summary.add_argument("report", type=Path, metavar="REPORT_DIR")
    summary.add_argument("--out", type=Path, metavar="FILE", help="write them here (default: print)")
    summary.set_defaults(run=_drafter_summary)
    trees = actions.add_parser("trees", help="trees beside the chains of the same drafters, for scripts")
    trees.add_argument(
        "report", type=Path, metavar="REPORT_DIR", help="of chains and trees on a dense target"
    )
    trees.add_argument("--hybrid", type=Path, metavar="REPORT_DIR", help="the same on a hybrid target")
    trees.add_argument("--two-level", type=Path, metavar="REPORT_DIR", help="of two levels, for their gain")
    trees.add_argument("--exact", type=Path, action="append", default=[], metavar="REPORT_DIR")
    trees.add_argument("--figures", type=Path, metavar="FILE", help="of the first level, for its agreement")
    trees.add_argument("--out", type=Path, metavar="FILE", help="write them here (default: print)")
    trees.set_defaults(run=_drafter_trees)
    measured = actions.add_parser("measured", help="write the figures of a report into the shipped cards")
    measured.add_argument(
        "report", type=Path, metavar="REPORT_DIR", help="as its path shall stand in the cards"
    )
    measured.add_argument(
        "--folder", type=Path, action="append", help="a drafter that is not shipped; again for more"
    )
    measured.set_defaults(run=guard(_drafter_measured))
    cross = actions.add_parser("crosscheck", help="acceptance of the same drafters here and in a server")
    cross.add_argument(
        "ours", type=Path, metavar="OUR_REPORT", help="run folder of an engine that tells its steps"
    )
    cross.add_argument(
        "theirs", type=Path, metavar="SERVER_REPORT", help="run folder of servers, arms named alike"
    )
    cross.add_argument("--out", type=Path, metavar="FILE", help="write the figures here too, as JSON")
    cross.set_defaults(run=_drafter_crosscheck)
    figures = actions.add_parser("figures", help="measure what trees and first levels of an arm are worth")
    add = figures.add_argument
    add("deployment", metavar="DEPLOYMENT", help="a name or a .toml file")
    add(
        "--params",
        required=True,
        metavar="PARAMS",
        help="of the arm, as in a plan: 'drafter = \"dspark\", tree = 16'",
    )
    add("--prompts", type=int, default=8, help="of the embedded set (default: %(default)s)")
    add("--tokens", type=int, default=128, help="of each output (default: %(default)s)")
    add(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="for `tree_figures` or `gain_figures` of the arm",
    )
    figures.set_defaults(run=guard(_drafter_figures))
    doctor = actions.add_parser("doctor", help="name what is broken in a drafter that loads and is only slow")
    add = doctor.add_argument
    add(
        "what",
        metavar="DEPLOYMENT|FOLDER",
        help="every drafter shipped for a deployment's target, or a folder",
    )
    add("--deployment", default="smollm2-135m-cpu-f32", help="of a FOLDER's target (default: %(default)s)")
    add("--prompts", type=int, default=8, help="of the embedded set (default: %(default)s)")
    add("--tokens", type=int, default=128, help="of the target's answers, at most (default: %(default)s)")
    doctor.set_defaults(run=guard(_drafter_doctor))


def _drafter_summary(options: argparse.Namespace) -> int:
    import json  # noqa: PLC0415

    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.report.summary import drafter_summary  # noqa: PLC0415

    _tell(json.dumps(drafter_summary(load_run(options.report).report), indent=2) + "\n", options.out)
    return EXIT_OK


def _drafter_trees(options: argparse.Namespace) -> int:
    import json  # noqa: PLC0415

    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.report.tree_summary import beta_of, tree_summary  # noqa: PLC0415

    def report(folder: Path) -> Report:
        return load_run(folder).report

    beta = None
    if options.figures is not None:
        try:
            found = json.loads(options.figures.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--figures {options.figures}: cannot be read: {error}") from None
        beta = beta_of(found if isinstance(found, dict) else {}, str(options.figures))
    hybrid, two_level = (None if one is None else report(one) for one in (options.hybrid, options.two_level))
    exact = [report(one) for one in options.exact]
    made = tree_summary(report(options.report), hybrid, exact, beta, two_level)
    _tell(json.dumps(made, indent=2) + "\n", options.out)
    return EXIT_OK


def _tell(text: str, out: Path | None) -> None:
    """Print figures, or write them to a file."""
    from harness.storage import write_atomic  # noqa: PLC0415

    if out is None:
        print(text, end="")
        return
    write_atomic(out, text)
    print(f"wrote {out}")


def _drafter_measured(options: argparse.Namespace) -> int:
    import hashlib  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.paths import RunFolder  # noqa: PLC0415
    from harness.report.cards import card_figures  # noqa: PLC0415
    from reference_mechanisms.drafters.card import Measured, read_card, with_measured, write_card  # noqa: PLC0415
    from reference_mechanisms.drafters.shipped import shipped  # noqa: PLC0415

    report = load_run(options.report).report
    digest = hashlib.sha256(RunFolder(options.report).report_json.read_bytes()).hexdigest()
    figures = card_figures(report, digest, options.report.as_posix())
    folders = options.folder or [one.folder for one in shipped()]
    cards = {
        (card.drafter, card.target_sha256): (folder, card)
        for folder in folders
        for card in [read_card(folder)]
    }
    changed = []
    for one in figures:
        if (one.drafter, one.target_sha256) in cards:
            folder, card = cards[one.drafter, one.target_sha256]
            changed.append(
                (folder, with_measured(card, msgspec.convert(one.measured, Measured), one.weights_sha256))
            )
    if not changed:
        raise UsageError(f"no card is about a drafter and target of {options.report}; give its --folder")
    for folder, card in changed:  # all of them fit: none is written alone
        write_card(card, folder)
        print(f"wrote {folder}: mean tau {card.measured[-1].mean}")
    return EXIT_OK


def _drafter_crosscheck(options: argparse.Namespace) -> int:
    import msgspec  # noqa: PLC0415

    from harness.codec import canonical_json  # noqa: PLC0415
    from harness.crosscheck import crosscheck, render  # noqa: PLC0415
    from harness.oracle.stored import load_run  # noqa: PLC0415
    from harness.storage import write_atomic  # noqa: PLC0415

    found = crosscheck(load_run(options.ours), load_run(options.theirs))
    print(render(found), end="")
    if options.out is not None:
        write_atomic(options.out, msgspec.json.format(canonical_json(found), indent=2) + b"\n")
        print(f"wrote {options.out}")
    return EXIT_VIOLATED if any(one.agree is False for one in found.drafters) else EXIT_OK


def _drafter_figures(options: argparse.Namespace) -> int:
    import time  # noqa: PLC0415
    import tomllib  # noqa: PLC0415

    from harness.models import resolve_model  # noqa: PLC0415
    from harness.plan import load_deployment  # noqa: PLC0415
    from reference_mechanisms.arm_figures import Sample  # noqa: PLC0415
    from reference_mechanisms.backend import measure_figures  # noqa: PLC0415

    try:
        params = tomllib.loads(f"params = {{ {options.params} }}")["params"]
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"--params: {error}; write them as in a plan: 'drafter = \"dspark\", tree = 16'"
        ) from None
    deployment = load_deployment(options.deployment)
    prompts = _embedded(resolve_model(deployment.target).path, options.prompts)
    sample = Sample(prompts, options.tokens, time.perf_counter)
    print(measure_figures(deployment, params, sample, options.out))
    print(f"wrote {options.out}")
    return EXIT_OK


def _drafter_doctor(options: argparse.Namespace) -> int:
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.plan import load_deployment  # noqa: PLC0415
    from reference_mechanisms.backend import examine  # noqa: PLC0415
    from reference_mechanisms.drafters.shipped import shipped  # noqa: PLC0415

    given = Path(options.what) if Path(options.what).is_dir() else None
    deployment = load_deployment(options.deployment if given is not None else options.what)
    model = resolve_model(deployment.target)
    folders = [one.folder for one in shipped() if one.target.sha256 == model.sha256]
    if given is not None:
        folders = [given]
    if not folders:
        raise UsageError(
            f"no drafter is shipped for the target of {deployment.name}; give a drafter's folder"
        )
    found = examine(deployment, folders, _embedded(model.path, options.prompts), options.tokens)
    for folder, findings in found.items():
        print(folder)
        for one in findings:
            word = "could not tell" if one.found is None else "BROKEN" if one.found else "ok"
            print(f"  {one.detector}: {word}; {one.detail}")
    broken = any(one.found for findings in found.values() for one in findings)
    return EXIT_VIOLATED if broken else EXIT_OK


def _embedded(model: Path, count: int) -> list[tuple[int, ...]]:
    """Token ids of so many embedded prompts, under the chat template of a model's folder."""
    from harness.plan import SetSpec  # noqa: PLC0415
    from harness.tokenize import PromptTokenizer  # noqa: PLC0415
    from sealed_evals.load import load_set  # noqa: PLC0415

    tokenizer = PromptTokenizer(model)
    drawn = load_set(SetSpec(name="embedded", count=count), evals_dir=None, seed=0)
    return [tokenizer.encode(prompt) for prompt in drawn.prompts]


def _training_target(name: str) -> TrainingTarget:
    from harness.models import resolve_model  # noqa: PLC0415
    from harness.plan import load_deployment  # noqa: PLC0415
    from reference_mechanisms.drafters.shipped import TrainedFor  # noqa: PLC0415
    from reference_mechanisms.drafters.training.running import TrainingTarget  # noqa: PLC0415

    model = resolve_model(load_deployment(name).target)
    if model.sha256 is None:
        raise UsageError(f"the weights of {name} lie behind a server; training needs them in a folder")
    name = re.sub(r"-[0-9a-f]{16}$", "", model.path.name)  # a packaged model's folder ends with its digest
    return TrainingTarget(model.path, TrainedFor(name, model.sha256), model.eos_token_ids)


def _evaluation_prompts(folder: Path | None) -> Mapping[str, Sequence[str]]:
    """First turns of every evaluation set, whole, in the order in which runs draw them."""
    from harness.paths import evals_dir  # noqa: PLC0415
    from sealed_evals.catalogue import load_catalogue  # noqa: PLC0415
    from sealed_evals.load import pinned_set  # noqa: PLC0415
    from sealed_evals.splits import draw  # noqa: PLC0415

    catalogue = load_catalogue()
    found = {}
    for name in catalogue.names:
        prompts = pinned_set(catalogue.entry(name), folder or evals_dir()).prompts
        found[name] = [prompt.turns[0] for prompt in draw(prompts, len(prompts), PUBLIC_SEED)]
    return found


def _says_something(text: Sequence[int]) -> bool:
    return not degenerate(text)


def _tied_digest(folder: Path) -> str:
    from harness.models import weights_digest  # noqa: PLC0415

    return weights_digest(folder, tied_head=True)


def _commit() -> str:
    from harness.environment import collect_harness  # noqa: PLC0415

    found = collect_harness()["git_commit"]
    return "unversioned tree" if found is None else str(found)[:12]


def _today() -> str:
    import datetime  # noqa: PLC0415

    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _curves(name: str, steps: Sequence[int], losses: Sequence[float], lengths: Sequence[float]) -> str:
    from harness.report.training_curves import training_curves  # noqa: PLC0415

    return training_curves(name, steps, losses, lengths)
