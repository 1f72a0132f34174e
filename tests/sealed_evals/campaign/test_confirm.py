from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from harness.errors import DataError, HarnessError, InvalidRun, UsageError
from sealed_evals.campaign.confirm import Step, confirm, load_candidate
from sealed_evals.campaign.controller import held
from sealed_evals.campaign.decide import rejected
from sealed_evals.campaign.ledger import check_chain, read_ledger
from sealed_evals.campaign.opening import Request
from sealed_evals.campaign.records import Outcome
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, open_shard
from tests.forking import in_fork
from tests.sealed_evals.campaign import build
from tests.sealed_evals.campaign.build import Place

ACCEPT = Outcome(accepted=True)


class Looks:
    """A judge that really opens the shard, and notes which on disk before it answers."""

    def __init__(self, path: Path, outcome: Outcome = ACCEPT) -> None:
        self.path, self.outcome = path, outcome

    def __call__(self, request: Request) -> Outcome:
        campaign, _ = load_campaign(CampaignFolder(Path(request.campaign)))
        data = CampaignFolder(Path(request.campaign)).shard(request.shard).read_bytes()
        open_shard(data, bytes.fromhex(request.key), campaign, request.shard, "shard")
        with self.path.open("a") as file:
            file.write(f"{request.shard}\n")
        return self.outcome

    @property
    def shards(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []


def run(
    place: Place, judge: Callable[[Request], Outcome], at: Callable[[Step], None] | None = None
) -> Outcome:
    return confirm(
        build.CANDIDATE,
        place.folder,
        place.root,
        evals_dir=None,
        now=lambda: build.NOW,
        judge=judge,
        at=at or (lambda _: None),
    )


def events(place: Place) -> list[tuple[str, str | None]]:
    return [(entry.event, entry.shard) for entry in read_ledger(place.folder.ledger)[0]]


def test_a_confirmation_spends_the_next_shard_and_writes_down_what_came_of_it(
    place: Place, tmp_path: Path
) -> None:
    looks = Looks(tmp_path / "looks")

    assert run(place, looks) == ACCEPT
    assert run(place, Looks(tmp_path / "looks", rejected("violated"))).line == "reject: violated"

    assert looks.shards == ["000", "001"]
    entries, _ = read_ledger(place.folder.ledger)
    assert [(e.event, e.shard, e.accepted, e.reason) for e in entries] == [
        ("started", None, None, None),
        ("opened", "000", None, None),
        ("decided", "000", True, None),
        ("opened", "001", None, None),
        ("decided", "001", False, "violated"),
    ]
    check_chain(entries, "ledger")


def test_the_ledger_line_is_on_disk_before_the_shard_is_opened(place: Place) -> None:
    def judge(request: Request) -> Outcome:
        assert events(place)[-1] == ("opened", request.shard)
        return ACCEPT

    run(place, judge)


def test_when_all_shards_are_used_the_campaign_is_over(place: Place, tmp_path: Path) -> None:
    looks = Looks(tmp_path / "looks")
    for _ in range(3):
        run(place, looks)

    with pytest.raises(UsageError, match=r"all 3 shards of campaign \w+ are used; start a new campaign"):
        run(place, looks)
    assert looks.shards == ["000", "001", "002"]


@pytest.mark.parametrize("step", get_args(Step))
def test_a_kill_at_any_step_may_waste_a_shard_but_gives_no_second_look(
    place: Place, tmp_path: Path, step: Step
) -> None:
    looks = Looks(tmp_path / "looks")

    def die(reached: Step) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(lambda: run(place, looks, die)) == -signal.SIGKILL

    looked = looks.shards
    opened = [shard for event, shard in events(place) if event == "opened"]
    assert set(looked) <= set(opened)  # nothing was seen that the ledger does not tell of
    assert bool(looked) == (step in ("judged", "decided"))
    assert run(place, looks) == ACCEPT  # the next one is not held up
    assert looks.shards == [*looked, "001" if opened else "000"]


def test_a_kill_while_the_shard_is_open_spends_it(place: Place, tmp_path: Path) -> None:
    looks = Looks(tmp_path / "looks")

    def look_and_die(request: Request) -> Outcome:
        looks(request)
        os.kill(os.getpid(), signal.SIGKILL)
        return ACCEPT

    assert in_fork(lambda: run(place, look_and_die)) == -signal.SIGKILL
    assert events(place)[-1] == ("opened", "000")
    run(place, looks)
    assert looks.shards == ["000", "001"]


def test_a_judge_that_raises_spends_the_shard(place: Place, tmp_path: Path) -> None:
    def fail(request: Request) -> Outcome:
        raise InvalidRun("no disk")

    with pytest.raises(InvalidRun, match="no disk"):
        run(place, fail)
    looks = Looks(tmp_path / "looks")
    run(place, looks)
    assert looks.shards == ["001"]


def test_two_confirmations_at_once_are_refused_even_from_two_copies(place: Place, tmp_path: Path) -> None:
    copy = CampaignFolder(Path(shutil.copytree(place.folder.root, tmp_path / "other")))
    looks = Looks(tmp_path / "looks")

    with held(place.controller):
        for folder in (place.folder, copy):
            with pytest.raises(InvalidRun, match=r"another confirmation of campaign \w+ is running"):
                run(place._replace(folder=folder), looks)
    assert looks.shards == []


def test_a_copy_of_the_campaign_gives_no_second_look(place: Place, tmp_path: Path) -> None:
    copy = CampaignFolder(Path(shutil.copytree(place.folder.root, tmp_path / "other")))
    looks = Looks(tmp_path / "looks")
    run(place, looks)

    with pytest.raises(DataError, match=r"is not the ledger that the controller wrote"):
        run(place._replace(folder=copy), looks)
    assert looks.shards == ["000"]


def damage(path: Path, place: int = -40) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def cut_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def other_key(place: Place) -> None:
    other = build.start(place.root.parent / "second")
    place.controller.key.write_bytes(other.controller.key.read_bytes())


SPOILED: dict[str, tuple[Callable[[Place], object], str]] = {
    "a changed byte of the shard": (
        lambda p: damage(p.folder.shard("000")),
        r"is not the published shard 000: sha256 \w+, published \w+",
    ),
    "a shard of another name": (
        lambda p: p.folder.shard("000").write_bytes(p.folder.shard("001").read_bytes()),
        r"is not the published shard 000",
    ),
    "a missing shard": (lambda p: p.folder.shard("000").unlink(), r"cannot read .*000\.bin"),
    "the wrong key": (other_key, r"is not the key of campaign \w+ \(wrong key\)"),
    "a damaged key": (lambda p: damage(p.controller.key, 3), r"key\.json is damaged"),
    "a missing key": (lambda p: p.controller.key.unlink(), r"cannot read .*key\.json"),
    "a key that others may read": (lambda p: p.controller.key.chmod(0o644), r"chmod 600"),
    "a missing head": (lambda p: p.controller.head.unlink(), r"nobody can tell whether the ledger was cut"),
    "a missing ledger": (lambda p: p.folder.ledger.unlink(), r"cannot read .*ledger\.jsonl"),
    "a cut ledger": (lambda p: cut_last_line(p.folder.ledger), r"is not the ledger that the controller"),
    "another level": (
        lambda p: p.folder.campaign.write_bytes(
            p.folder.campaign.read_bytes().replace(b'"level":0.05', b'"level":0.45')
        ),
        r"is not what it was when the campaign started",
    ),
    "another root": (
        lambda p: p.folder.campaign.write_bytes(
            p.folder.campaign.read_bytes().replace(p.campaign.root.encode(), b"0" * 64)
        ),
        r"its root is not that of its shards",
    ),
}


@pytest.mark.parametrize(("spoil", "told"), SPOILED.values(), ids=SPOILED)
def test_what_is_spoiled_is_refused_before_any_shard_is_spent(
    place: Place, tmp_path: Path, spoil: Callable[[Place], object], told: str
) -> None:
    looks = Looks(tmp_path / "looks")
    spoil(place)

    with pytest.raises(HarnessError, match=told):
        run(place, looks)
    assert looks.shards == []
    if place.folder.ledger.exists():
        assert all(event != "opened" for event, _ in events(place))


def test_a_candidate_file_names_the_field_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "candidate.toml"
    path.write_text('schema = "candidate/1"\nname = "x"\nbackend = "m:f"\nparam = {}\n')
    with pytest.raises(UsageError, match=r"unknown field `param`.*did you mean `params`"):
        load_candidate(path)
    with pytest.raises(UsageError, match=r"candidate .*nowhere\.toml: cannot be read"):
        load_candidate(tmp_path / "nowhere.toml")


def test_the_process_that_holds_a_shard_ends_with_its_parent() -> None:
    code = (
        "import threading, time, sealed_evals.campaign.opening as opening\n"
        "threading.Thread(target=opening._end_with_parent).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(timeout=60) == -signal.SIGKILL
