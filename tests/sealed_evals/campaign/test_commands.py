from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import DataError, HarnessError, InvalidRun, UsageError
from sealed_evals.campaign.check import check_campaign
from sealed_evals.campaign.confirm import confirm
from sealed_evals.campaign.controller import held
from sealed_evals.campaign.decide import rejected
from sealed_evals.campaign.records import Outcome
from sealed_evals.campaign.vault import CampaignFolder
from sealed_evals.commands import register
from tests.sealed_evals.campaign import build
from tests.sealed_evals.campaign.build import Place


@pytest.fixture(autouse=True)
def _no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECPILOT_EVALS_DIR", raising=False)
    monkeypatch.delenv("SPECPILOT_CONTROLLER_DIR", raising=False)


def evals(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options = parser.parse_args(["evals", *map(str, arguments)])
    code: int = options.run(options)
    return code


def at(place: Place) -> tuple[str | Path, ...]:
    return ("--campaign", place.folder.root, "--controller", place.root)


def spend(place: Place, outcome: Outcome) -> None:
    confirm(
        build.CANDIDATE,
        place.folder,
        place.root,
        evals_dir=None,
        now=lambda: build.NOW,
        judge=lambda request: outcome,
    )


def test_a_campaign_is_started_from_a_built_in_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, keys = tmp_path / "campaign", tmp_path / "keys"
    sizes = ("--shards", "2", "--public-rows", "5", "--shard-rows", "4")

    assert evals("campaign", folder, "--plan", "reproduce-cpu", "--controller", keys, *sizes) == 0

    told = capsys.readouterr()
    assert "2 unseen shards of 4 prompts, 5 public prompts" in told.out
    assert "publish this root now: " in told.out
    assert "not compared with gsm8k, math500, mbpp, mt_bench" in told.err
    campaign = check_campaign(CampaignFolder(folder)).campaign
    assert campaign.root in told.out
    assert campaign.checked_against == ("humaneval", "embedded")
    assert evals("verify", "--campaign", folder) == 0


def test_without_a_size_a_shard_has_as_many_rows_as_the_gain_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("campaign", tmp_path / "c", "--plan", "reproduce-cpu", "--controller", tmp_path / "k")
    assert evals(*call, "--shards", "1", "--public-rows", "1", "--confirm-gain", "0.1") == 0
    assert "1 unseen shards of 16 prompts" in capsys.readouterr().out


def test_a_campaign_tells_where_it_stands_and_anyone_can_check_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    spend(place, Outcome(accepted=True))
    spend(place, rejected("not-faster"))
    shutil.rmtree(place.root)  # nothing of the controller's is needed

    assert evals("verify", "--campaign", place.folder.root) == 0
    told = capsys.readouterr().out
    assert "3 shards as sealed, 2 opened, 1 accepted, 1 rejected, 0 revealed" in told
    assert place.campaign.root in told


SPOILED: dict[str, tuple[Callable[[Place], object], str]] = {
    "a byte of a shard": (
        lambda p: p.folder.shard("002").write_bytes(p.folder.shard("002").read_bytes()[:-1] + b"?"),
        "is not the published shard 002",
    ),
    "a public row": (
        lambda p: p.folder.public.write_bytes(p.folder.public.read_bytes().replace(b"a", b"b", 1)),
        "is not the published shard public",
    ),
    "a salt of the public rows": (
        lambda p: p.folder.public_opening.write_bytes(
            p.folder.public_opening.read_bytes().replace(b'"salt":"', b'"salt":"00', 1)
        ),
        "its rows are not those committed to",
    ),
    "a line of the ledger": (
        lambda p: p.folder.ledger.write_bytes(
            p.folder.ledger.read_bytes().replace(b"not-faster", b"violated", 1)
        ),
        "line 5 was changed",
    ),
    "the ledger of another campaign": (
        lambda p: p.folder.ledger.write_bytes(
            build.start(p.root.parent / "other").folder.ledger.read_bytes()
        ),
        "belongs to another campaign.json",
    ),
}


@pytest.mark.parametrize(("spoil", "told"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_campaign_fails_the_check(
    place: Place, capsys: pytest.CaptureFixture[str], spoil: Callable[[Place], object], told: str
) -> None:
    spend(place, Outcome(accepted=True))
    spend(place, rejected("not-faster"))
    spoil(place)

    assert evals("verify", "--campaign", place.folder.root) == 2
    assert told in capsys.readouterr().out


def test_a_revealed_campaign_is_over_and_proves_its_commitment(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    spend(place, Outcome(accepted=True))

    assert evals("reveal", *at(place)) == 0
    assert evals("reveal", *at(place)) == 0  # one that was cut short is finished
    assert "revealed: 3 shards" in capsys.readouterr().out
    assert evals("verify", "--campaign", place.folder.root) == 0
    assert "1 opened, 1 accepted, 0 rejected, 3 revealed" in capsys.readouterr().out

    with pytest.raises(UsageError, match="is over: its shards were revealed"):
        spend(place, Outcome(accepted=True))


def test_a_revealed_row_that_was_swapped_fails_the_check(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    evals("reveal", *at(place))
    path = place.folder.revealed / "001.json"
    opening = json.loads(path.read_bytes())
    opening["rows"][0]["line"] = opening["rows"][0]["line"].replace("Item", "Idem")
    path.write_text(json.dumps(opening))
    (place.folder.revealed / "002.json").unlink()

    assert evals("verify", "--campaign", place.folder.root) == 2
    told = capsys.readouterr().out
    assert "shard 001 of campaign" in told
    assert "its rows are not those committed to" in told
    assert "cannot read" in told
    assert "Idem" not in told


def test_nothing_is_revealed_while_a_confirmation_runs(place: Place) -> None:
    with held(place.controller), pytest.raises(InvalidRun, match="another confirmation"):
        evals("reveal", *at(place))
    assert not place.folder.revealed.exists()


def test_scan_tells_where_unseen_rows_are(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/log.txt").write_text("clean")
    assert evals("scan", tmp_path / "tree", *at(place)) == 0
    assert capsys.readouterr().out == "1 files searched, 0 rows of unseen shards found\n"

    evals("reveal", *at(place))  # an easy way to plaintext
    shutil.copy(place.folder.revealed / "000.json", tmp_path / "tree/notes.txt")
    capsys.readouterr()
    assert evals("scan", tmp_path / "tree", *at(place)) == 1
    told = capsys.readouterr().out
    assert "notes.txt line 1: row 7 of unseen shard 000" in told
    assert told.endswith("2 files searched, 8 rows of unseen shards found\n")


WRONG: dict[str, tuple[tuple[str, ...], type[HarnessError], str]] = {
    "no campaign": (("scan", ".", "--campaign", "nowhere"), DataError, "give the folder of a campaign"),
    "a report and a name": (("verify", "gsm8k", "--report", "x"), UsageError, "take no NAME"),
    "no report": (("verify", "--report", "nowhere"), DataError, "give the folder of a finished run"),
    "no candidate": (("confirm", "nowhere.toml", "--campaign", "x"), UsageError, "cannot be read"),
}


@pytest.mark.parametrize(("call", "error", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_one_clear_error(
    call: tuple[str, ...],
    error: type[HarnessError],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=told):
        evals(*call)
