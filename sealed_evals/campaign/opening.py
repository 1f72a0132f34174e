"""The process that opens one shard: ``python -m sealed_evals.campaign.opening``.

It is given the key of one shard and no other on its standard input, decrypts it, runs stock and
candidate on it, and writes one line, the outcome, to a descriptor that no process it starts
inherits. Whatever else it or a backend prints goes to a log in the controller's folder. It ends
when its parent does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from harness.codec import Record, canonical_json, from_json
from harness.errors import HarnessError
from harness.plan import SetSpec
from harness.storage import write_atomic
from sealed_evals.campaign.decide import confirmation_job, decide, rejected
from sealed_evals.campaign.records import Campaign, Candidate, Outcome, ShardOpening
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, open_shard, plain_lines

ROWS = "shard.jsonl"  # the rows of the shard in the evidence, as a set that `check` can load
OPENING = "opening.json"


class Request(Record, frozen=True):
    """What the process is asked for, on one line of its standard input."""

    campaign: str  # folder
    shard: str
    key: str  # of that shard, hex
    candidate: Candidate
    evidence: str  # folder
    evals_dir: str | None  # of the calibration set


def main(arguments: list[str]) -> int:
    """Open, run, tell; exit code 0 if there is an outcome."""
    channel = int(arguments[0])
    os.set_inheritable(channel, False)
    request = from_json(_line(), Request, "request")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome = confirm_on(request)
    with os.fdopen(channel, "wb") as pipe:
        pipe.write(canonical_json(outcome) + b"\n")
    return 0


def confirm_on(request: Request) -> Outcome:
    """The outcome on one shard; the evidence lies in its folder afterwards.

    Raises:
        DataError: the shard is not the published one.
    """
    folder = CampaignFolder(Path(request.campaign))
    campaign, _ = load_campaign(folder)
    where = folder.shard(request.shard)
    opening = open_shard(where.read_bytes(), bytes.fromhex(request.key), campaign, request.shard, str(where))
    evidence = Path(request.evidence)
    rows = write_evidence(evidence, opening)
    spec = SetSpec(
        name=f"unseen-{request.shard}", count=len(opening.rows), path=str(rows.resolve()), field="turns"
    )
    try:
        return _run(request, spec, evidence, campaign)
    except HarnessError as error:
        print(f"the run gave no report: {error}", file=sys.stderr)
        return rejected("failed")


def write_evidence(evidence: Path, opening: ShardOpening) -> Path:
    """Put the opened shard beside the run, so that anyone who is given the folder can check it."""
    write_atomic(evidence / OPENING, canonical_json(opening))
    write_atomic(evidence / ROWS, plain_lines(opening.rows))
    return evidence / ROWS


def _run(request: Request, spec: SetSpec, evidence: Path, campaign: Campaign) -> Outcome:
    from harness.oracle.stored import load_run  # noqa: PLC0415 - the run's modules are slow to import
    from harness.progress import RichReporter  # noqa: PLC0415
    from harness.run import calibration_spec, execute, without  # noqa: PLC0415
    from sealed_evals.load import load_set  # noqa: PLC0415

    job = confirmation_job(campaign.job, request.candidate, spec)
    seed = job.plan.measure.seed
    root = next(shard.root for shard in campaign.shards if shard.name == request.shard)
    drawn = msgspec.structs.replace(
        load_set(spec, evals_dir=None, seed=seed),
        split=request.shard,
        source=f"campaign {campaign.campaign_id}",
        licence=campaign.generator,
        merkle_root=root,
    )
    folder = Path(request.evals_dir) if request.evals_dir is not None else None
    calibration = without(load_set(calibration_spec(job), evals_dir=folder, seed=seed), [drawn])
    command = ("specpilot-harness", "evals", "confirm")
    with RichReporter() as reporter:
        report, _ = execute(job, [drawn], calibration, evidence, reporter, command=command)
    timed = load_run(evidence).responses
    return decide(report, campaign.gain, campaign.test, campaign.level, responses=timed)


def _line() -> bytes:
    """The request, read without a buffer: what comes after it is for `_end_with_parent`."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    return line


def _end_with_parent() -> None:
    """Kill this process and all it started once the parent's end of the pipe is closed."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
