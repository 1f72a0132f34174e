"""A confirmation: one candidate, one shard that nobody has seen, one verdict.

The order is the point. The opening is written to the ledger and synced, then the head is written
and synced, and only then does another process get the key of the shard. A crash before leaves the
shard unopened; a crash after has spent it. No order of crashes gives a second look.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from harness.codec import canonical_json, digest, from_json, from_toml
from harness.errors import DataError, InvalidRun, UsageError
from harness.plan import SetSpec
from harness.storage import file_digest
from sealed_evals.campaign.controller import Controller, held, load_head, load_key, write_head
from sealed_evals.campaign.crypto import derive
from sealed_evals.campaign.decide import rejected
from sealed_evals.campaign.ledger import (
    Entry,
    append,
    check_chain,
    check_head,
    next_entry,
    read_ledger,
)
from sealed_evals.campaign.opening import Request
from sealed_evals.campaign.records import Campaign, Candidate, Head, Outcome, ShardSeal
from sealed_evals.campaign.vault import CampaignFolder, check_sealed, load_campaign, read_sealed, shard_key

Step = Literal[
    "held",  # the key is this process's
    "checked",  # campaign, key, ledger and shard are what they should be
    "recorded",  # the opening is in the ledger
    "anchored",  # and in the head
    "judged",  # the shard was opened and the outcome is known here
    "decided",  # the outcome is in the ledger
]
Judge = Callable[[Request], Outcome]
Clock = Callable[[], datetime.datetime]


class Ledger(NamedTuple):
    """A ledger that was found in order, with what is needed to add to it."""

    path: Path
    entries: tuple[Entry, ...]
    size: int  # bytes of the whole lines
    key: bytes
    controller: Controller

    @property
    def used(self) -> frozenset[str]:
        """Names of the shards that were opened, or may have been."""
        return frozenset(e.shard for e in self.entries if e.event == "opened" and e.shard is not None)

    def record(self, entry: Entry, recorded: Callable[[], None] = lambda: None) -> Ledger:
        """Add an entry, synced, and the head after it; `recorded` is called between the two."""
        sealed = next_entry(self.entries, entry, self.key)
        size = append(self.path, sealed, self.size)
        recorded()
        entries = (*self.entries, sealed)
        write_head(self.controller, Head(lines=len(entries), hash=sealed.hash))
        return self._replace(entries=entries, size=size)


def load_candidate(path: Path) -> Candidate:
    """The arm of a CANDIDATE.toml.

    Raises:
        UsageError: it cannot be read, or a field does not fit, by name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"candidate {path}: cannot be read: {error}") from None
    return from_toml(text, Candidate, str(path))


def open_ledger(folder: CampaignFolder, controller: Controller, secret: bytes) -> Ledger:
    """The campaign's ledger, checked against itself, the secret and the head.

    Raises:
        DataError: a line is missing, changed, moved or not the controller's.
    """
    entries, size = read_ledger(folder.ledger)
    key = derive(secret, "ledger")
    check_chain(entries, str(folder.ledger), key)
    check_head(entries, load_head(controller), str(folder.ledger))
    return Ledger(folder.ledger, entries, size, key, controller)


def confirm(
    candidate: Candidate,
    folder: CampaignFolder,
    root: Path,
    *,
    evals_dir: Path | None,
    now: Clock,
    judge: Judge | None = None,
    at: Callable[[Step], None] = lambda _: None,
) -> Outcome:
    """Spend one shard on a candidate.

    Args:
        candidate: the arm to confirm.
        folder: of the campaign.
        root: the controller's folder.
        evals_dir: folder of original evaluation files, for the calibration set.
        now: time of the ledger's entries.
        judge: opens the shard and judges; None: in a process of its own.
        at: told each step as it is done; tests end the process there.

    Raises:
        DataError: campaign, key, ledger or shard is not what it was when the campaign started.
        UsageError: every shard is used.
        InvalidRun: another confirmation is running, or a file cannot be written.
    """
    campaign, sha256 = load_campaign(folder)
    controller = Controller(root, campaign.campaign_id)
    with held(controller):
        at("held")
        secret = load_key(controller, campaign, sha256)
        ledger = open_ledger(folder, controller, secret)
        if any(entry.event == "revealed" for entry in ledger.entries):
            raise UsageError(f"campaign {campaign.campaign_id} is over: its shards were revealed")
        shard = next_shard(campaign, ledger.used)
        check_sealed(read_sealed(folder.shard(shard)), _seal(campaign, shard), str(folder.shard(shard)))
        if judge is None:
            _look_for_inputs(campaign, evals_dir)
        at("checked")
        entry = _entry("opened", now(), sha256, shard, candidate)
        ledger = ledger.record(entry, lambda: at("recorded"))
        at("anchored")
        evidence = controller.evidence(shard)
        request = Request(
            campaign=str(folder.root.resolve()),
            shard=shard,
            key=shard_key(secret, shard).hex(),
            candidate=candidate,
            evidence=str(evidence.resolve()),
            evals_dir=None if evals_dir is None else str(evals_dir.resolve()),
        )
        outcome = (judge or in_own_process)(request)
        at("judged")
        ledger.record(_decided(entry, outcome, now(), evidence / "report.json"))
        at("decided")
    return outcome


def next_shard(campaign: Campaign, used: frozenset[str]) -> str:
    """Name of the first shard that was never opened.

    Raises:
        UsageError: there is none.
    """
    left = [shard.name for shard in campaign.shards if shard.name not in used]
    if not left:
        raise UsageError(
            f"all {len(campaign.shards)} shards of campaign {campaign.campaign_id} are used; "
            "start a new campaign"
        )
    return left[0]


def in_own_process(request: Request) -> Outcome:
    """The outcome, from a process that gets the key of this shard only.

    What it and the backends print goes to a log beside the evidence. A process that ends without
    an outcome, for whatever reason, rejects.

    Raises:
        InvalidRun: the evidence folder cannot be written.
    """
    evidence = Path(request.evidence)
    try:
        evidence.mkdir(parents=True, exist_ok=True)
        log = (evidence / "log.txt").open("ab")
    except OSError as error:
        raise InvalidRun(f"cannot write {evidence}: {error.strerror}; the shard is spent") from None
    reader, writer = os.pipe()
    with log, os.fdopen(reader, "rb") as pipe:
        child = subprocess.Popen(
            [sys.executable, "-m", "sealed_evals.campaign.opening", str(writer)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if k != "SPECPILOT_CONTROLLER_DIR"},
        )
        os.close(writer)
        try:
            if child.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(canonical_json(request) + b"\n")
                    child.stdin.flush()
            told = pipe.read()
            child.wait()
        finally:
            _end(child)
    try:
        return from_json(told, Outcome, "outcome") if child.returncode == 0 else rejected("failed")
    except DataError:
        return rejected("failed")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and everything it started that is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()


def _entry(
    event: Literal["opened"], at: datetime.datetime, sha256: str, shard: str, candidate: Candidate
) -> Entry:
    return Entry(
        schema="ledger/1",
        number=0,
        previous="",
        at=at.isoformat(timespec="seconds"),
        event=event,
        campaign_sha256=sha256,
        shard=shard,
        candidate=digest(candidate),
    )


def _decided(opened: Entry, outcome: Outcome, at: datetime.datetime, report: Path) -> Entry:
    return Entry(
        schema="ledger/1",
        number=0,
        previous="",
        at=at.isoformat(timespec="seconds"),
        event="decided",
        campaign_sha256=opened.campaign_sha256,
        shard=opened.shard,
        candidate=opened.candidate,
        accepted=outcome.accepted,
        reason=outcome.reason,
        evidence=file_digest(report) if report.is_file() else None,
    )


def _look_for_inputs(campaign: Campaign, evals_dir: Path | None) -> None:
    """Hold that target and calibration set are here, before a shard is spent on finding out.

    Nothing of the candidate's is imported: this process can open every shard.

    Raises:
        HarnessError: one of them is not.
    """
    from harness.models import resolve_model  # noqa: PLC0415 - what only a real run needs
    from sealed_evals.load import load_set  # noqa: PLC0415

    oracle = campaign.job.plan.oracle
    calibration = SetSpec(name=oracle.calibration_set, count=oracle.calibration_prompts)
    load_set(calibration, evals_dir=evals_dir, seed=campaign.job.plan.measure.seed)
    resolve_model(campaign.job.deployment.target)


def _seal(campaign: Campaign, name: str) -> ShardSeal:
    return next(shard for shard in campaign.shards if shard.name == name)
