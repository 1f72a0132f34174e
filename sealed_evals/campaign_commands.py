"""``specpilot-harness evals``: start a campaign, confirm a candidate, scan for canaries, reveal."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness import paths
from harness.errors import EXIT_INVALID, EXIT_OK, EXIT_VIOLATED, UsageError

if TYPE_CHECKING:
    from sealed_evals.beside import Length
    from sealed_evals.campaign.vault import CampaignFolder
    from sealed_evals.generator.rewording import Known

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def register_campaign(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands of campaigns; each sets `run`."""
    start = commands.add_parser("campaign", help="start a campaign: public and unseen prompts, sealed")
    add = start.add_argument
    add("folder", type=Path, metavar="DIR", help="new folder of the campaign; anyone may read it")
    add("--plan", required=True, help="plan whose stock arm candidates are confirmed against")
    add("--shards", type=int, default=20, help="unseen shards: candidates to confirm (default: %(default)s)")
    add("--public-rows", type=int, default=200, help="prompts that all may see (default: %(default)s)")
    add("--shard-rows", type=int, help="prompts of a shard (default: as many as the next three ask for)")
    add(
        "--confirm-gain", type=float, default=0.05, help="gain that shall be confirmed (default: %(default)s)"
    )
    add(
        "--spread",
        type=float,
        default=0.1,
        help="of the log ratio between prompts (default: %(default)s)",
    )
    add("--power", type=float, default=0.8, help="chance that it is confirmed (default: %(default)s)")
    add(
        "--level",
        type=float,
        default=0.05,
        help="chance that one candidate that is no faster is accepted (default: %(default)s)",
    )
    add("--gain", type=float, default=0.0, help="gain a candidate must exceed (default: %(default)s)")
    add(
        "--test",
        choices=("interval", "sign-flip"),
        default="interval",
        help="sign-flip: launches must pass the exact test, too (default: %(default)s)",
    )
    start.set_defaults(run=_start)

    confirming = commands.add_parser(
        "confirm", help="spend one unseen shard on a candidate; one verdict line"
    )
    confirming.add_argument("candidate", type=Path, metavar="CANDIDATE.toml")
    confirming.set_defaults(run=_confirm)

    scanning = commands.add_parser("scan", help="look for rows of unseen shards in files and folders")
    scanning.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    scanning.set_defaults(run=_scan)

    revealing = commands.add_parser("reveal", help="end a campaign and publish all its rows and salts")
    revealing.set_defaults(run=_reveal)

    comparing = commands.add_parser(
        "beside", help="generated prompts beside public ones, from one run of both"
    )
    comparing.add_argument("report", type=Path, metavar="REPORT_DIR")
    comparing.set_defaults(run=_beside)

    for command in (confirming, scanning, revealing):
        command.add_argument("--campaign", type=Path, required=True, metavar="DIR")
    for command in (start, confirming, scanning, revealing):
        command.add_argument("--controller", type=Path, metavar="DIR", help="folder of keys and evidence")
    for command in (start, confirming):
        command.add_argument("--evals-dir", type=Path, help="folder with the original evaluation files")


def verify_sealed(options: argparse.Namespace) -> int:
    """Check a report, or a campaign; exit code 2 if a seal is broken.

    Raises:
        UsageError: sets are named, too.
    """
    from sealed_evals.campaign.vault import CampaignFolder  # noqa: PLC0415
    from sealed_evals.catalogue import load_catalogue  # noqa: PLC0415
    from sealed_evals.report_seal import verify_report  # noqa: PLC0415

    if options.names:
        raise UsageError("verify --report and --campaign take no NAME; call verify twice")
    folder = None if options.campaign is None else CampaignFolder(options.campaign)
    if options.report is None and folder is not None:
        return _verify_campaign(folder)
    found = verify_report(options.report, load_catalogue(), folder)
    for line in (*found.notes, *found.problems):
        print(line)
    if not found.problems:
        print(f"{options.report}: on the sealed prompts of {', '.join(found.held) or 'no set'}")
    return EXIT_INVALID if found.problems else EXIT_OK


def _verify_campaign(folder: CampaignFolder) -> int:
    from sealed_evals.campaign.check import check_campaign  # noqa: PLC0415

    state = check_campaign(folder)
    for problem in state.problems:
        print(problem)
    if not state.problems:
        total = len(state.campaign.shards)
        print(
            f"{folder.root}: {total} shards as sealed, {state.opened} opened, {state.accepted} accepted, "
            f"{state.rejected} rejected, {state.revealed} revealed; root {state.campaign.root}"
        )
    return EXIT_INVALID if state.problems else EXIT_OK


def _start(options: argparse.Namespace) -> int:
    from harness.plan import load_job  # noqa: PLC0415 - commands load only what they need
    from sealed_evals.campaign.create import Wanted, create  # noqa: PLC0415
    from sealed_evals.campaign.records import Sizing  # noqa: PLC0415
    from sealed_evals.campaign.vault import CampaignFolder  # noqa: PLC0415

    wanted = Wanted(
        job=load_job(options.plan),
        shards=options.shards,
        public_rows=options.public_rows,
        level=options.level,
        gain=options.gain,
        sizing=Sizing(gain=options.confirm_gain, spread=options.spread, power=options.power),
        rows=options.shard_rows,
        test=options.test,
    )
    rows, missing = _known(options.evals_dir)
    folder = CampaignFolder(options.folder)
    campaign = create(wanted, folder, _controller(options), rows, _now())
    if missing:
        print(
            f"not compared with {', '.join(missing)}: not on this machine; --evals-dir names their folder",
            file=sys.stderr,
        )
    print(
        f"{folder.campaign}: {len(campaign.shards)} unseen shards of {campaign.shards[0].rows} prompts, "
        f"{campaign.public.rows} public prompts"
    )
    print(f"publish this root now: {campaign.root}")
    return EXIT_OK


def _confirm(options: argparse.Namespace) -> int:
    from sealed_evals.campaign.confirm import confirm, load_candidate  # noqa: PLC0415
    from sealed_evals.campaign.vault import CampaignFolder  # noqa: PLC0415

    outcome = confirm(
        load_candidate(options.candidate),
        CampaignFolder(options.campaign),
        _controller(options),
        evals_dir=options.evals_dir if options.evals_dir is not None else paths.evals_dir(),
        now=_now,
    )
    print(outcome.line)
    return EXIT_OK if outcome.accepted else EXIT_VIOLATED


def _scan(options: argparse.Namespace) -> int:
    from sealed_evals.campaign.controller import Controller, load_key  # noqa: PLC0415
    from sealed_evals.campaign.scan import scan  # noqa: PLC0415
    from sealed_evals.campaign.vault import CampaignFolder, load_campaign  # noqa: PLC0415

    folder = CampaignFolder(options.campaign)
    campaign, sha256 = load_campaign(folder)
    secret = load_key(Controller(_controller(options), campaign.campaign_id), campaign, sha256)
    leaks, files = scan(options.paths, campaign, secret)
    for leak in leaks:
        print(leak.text)
    print(f"{files} files searched, {len(leaks)} rows of unseen shards found")
    return EXIT_VIOLATED if leaks else EXIT_OK


def _reveal(options: argparse.Namespace) -> int:
    from sealed_evals.campaign.reveal import reveal  # noqa: PLC0415
    from sealed_evals.campaign.vault import CampaignFolder  # noqa: PLC0415

    folder = CampaignFolder(options.campaign)
    count = reveal(folder, _controller(options), _now)
    print(f"{folder.revealed}: {count} shards; anyone can check them with: evals verify --campaign DIR")
    return EXIT_OK


def _beside(options: argparse.Namespace) -> int:
    from tabulate import tabulate  # noqa: PLC0415

    from harness.oracle.stored import load_run  # noqa: PLC0415
    from sealed_evals.beside import beside, pooled  # noqa: PLC0415

    run = load_run(options.report)
    found = beside(run)
    arms = list(found[0].generated.acceptance)
    rows = [
        [
            *(f"{one.kind} / {one.like}", f"{one.generated.prompts} / {one.public.prompts}"),
            *(f"{one.generated.characters:.0f} / {one.public.characters:.0f}",),
            *(f"{one.generated.tokens:.0f} / {one.public.tokens:.0f}",),
            *(_pair(one.generated.acceptance[arm], one.public.acceptance[arm]) for arm in arms),
        ]
        for one in found
    ]
    lengths = [f"acceptance length, {arm}" for arm in arms]
    headers = ["generated / public", "prompts", "median characters", "median tokens", *lengths]
    print(tabulate(rows, headers=headers, disable_numparse=True))
    told = [(one.arm, *map(_interval, (one.generated, one.public, one.ratio))) for one in pooled(run)]
    headers = ["arm, all prompts", "generated", "public", "generated over public, kind by kind"]
    print("\nAcceptance length over all prompts, each counted once; on the right the mean over kinds.")
    print("Intervals of 95 % over prompts.\n")
    print(tabulate(told, headers=headers, disable_numparse=True))
    return EXIT_OK


def _interval(length: Length) -> str:
    return f"{length.point:.2f} [{length.low:.2f}, {length.high:.2f}]"


def _pair(ours: float | None, theirs: float | None) -> str:
    return " / ".join("-" if length is None else f"{length:.2f}" for length in (ours, theirs))


def _known(evals_dir: Path | None) -> tuple[Known, list[str]]:
    """Rows of the public sets that are on this machine, and the names of the others."""
    from sealed_evals.catalogue import load_catalogue  # noqa: PLC0415
    from sealed_evals.generator.rewording import known  # noqa: PLC0415
    from sealed_evals.load import pinned_set  # noqa: PLC0415
    from sealed_evals.sources import SetNotFound  # noqa: PLC0415

    sets, missing = [], []
    for entry in load_catalogue().sets:
        try:
            sets.append(pinned_set(entry, evals_dir, hub=False))
        except SetNotFound:
            missing.append(entry.name)
    return known(sets), missing


def _controller(options: argparse.Namespace) -> Path:
    given: Path | None = options.controller
    return given if given is not None else paths.controller_dir()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
