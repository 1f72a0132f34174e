from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.codec import canonical_json, from_json
from harness.errors import DataError
from harness.paths import RunFolder
from harness.plan import SetSpec
from harness.records import PromptLine, PromptSet
from harness.results import Report, SetSummary
from harness.storage import file_digest, read_lines, write_atomic, write_lines
from sealed_evals.campaign.confirm import confirm
from sealed_evals.campaign.opening import Request, write_evidence
from sealed_evals.campaign.records import Outcome
from sealed_evals.campaign.vault import CampaignFolder, load_campaign, open_shard
from sealed_evals.catalogue import load_catalogue
from sealed_evals.load import load_set, pinned_set
from sealed_evals.report_seal import Sealed, verify_report
from tests.sealed_evals import samples
from tests.sealed_evals.campaign import build
from tests.sealed_evals.campaign.build import Place


def summary(drawn: PromptSet) -> SetSummary:
    plain = {name: getattr(drawn, name) for name in SetSummary.__struct_fields__ if name != "drawn"}
    return SetSummary(drawn=len(drawn.prompts), **plain)


def write(root: Path, *sets: PromptSet) -> RunFolder:
    """A finished run on these prompts, without responses."""
    folder = RunFolder(root)
    write_lines(
        folder.prompts, [PromptLine(prompt=p, token_ids=(1,)) for drawn in sets for p in drawn.prompts]
    )
    write_lines(folder.responses, [])
    report = build.report(build.interval(1.1, 1.2))
    write_atomic(folder.job, canonical_json(report.job))
    files = {path.name: file_digest(path) for path in (folder.prompts, folder.responses)}
    told = msgspec.structs.replace(report, sets=tuple(map(summary, sets)), files=files)
    write_atomic(folder.report_json, canonical_json(told))
    return folder


def change(folder: RunFolder, edit: Callable[[list[PromptLine]], list[PromptLine]]) -> None:
    """Change the prompts and make the report's own hash agree, as a forger would."""
    write_lines(folder.prompts, edit(list(read_lines(folder.prompts, PromptLine))))
    report = from_json(folder.report_json.read_bytes(), Report, "report")
    files = report.files | {folder.prompts.name: file_digest(folder.prompts)}
    write_atomic(folder.report_json, canonical_json(msgspec.structs.replace(report, files=files)))


def retell(folder: RunFolder, **fields: Any) -> None:
    report = from_json(folder.report_json.read_bytes(), Report, "report")
    first = msgspec.structs.replace(report.sets[0], **fields)
    told = msgspec.structs.replace(report, sets=(first, *report.sets[1:]))
    write_atomic(folder.report_json, canonical_json(told))


def verify(folder: RunFolder, campaign: CampaignFolder | None = None) -> Sealed:
    return verify_report(folder.root, load_catalogue(), campaign)


@pytest.fixture
def public(tmp_path: Path) -> RunFolder:
    embedded, human = (
        load_set(SetSpec(name=name, count=6), evals_dir=None, seed=1) for name in ("embedded", "humaneval")
    )
    return write(tmp_path / "run", embedded, human)


def test_a_report_on_pinned_sets_holds(public: RunFolder) -> None:
    assert verify(public) == Sealed((), (), ("embedded", "humaneval"))


def _other_text(lines: list[PromptLine]) -> list[PromptLine]:
    prompt = msgspec.structs.replace(lines[0].prompt, turns=("An easier one: say A.",))
    return [msgspec.structs.replace(lines[0], prompt=prompt), *lines[1:]]


def _other_set(lines: list[PromptLine]) -> list[PromptLine]:
    prompt = msgspec.structs.replace(lines[0].prompt, set_name="mbpp")
    return [msgspec.structs.replace(lines[0], prompt=prompt), *lines[1:]]


FORGED: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "a prompt's text": (
        lambda f: change(f, _other_text),
        "set embedded: 1 prompts are no rows of it: embedded/",
    ),
    "a prompt left out": (lambda f: change(f, lambda lines: lines[1:]), "6 prompts were drawn, 5 are there"),
    "a prompt of a set that is not named": (lambda f: change(f, _other_set), "holds prompts of 'mbpp'"),
    "a pin": (lambda f: retell(f, prompts_sha256="0" * 64), "`prompts_sha256` is 000"),
    "a root": (lambda f: retell(f, merkle_root="0" * 64), "`merkle_root` is 000"),
    "a file after the report": (
        lambda f: write_lines(f.prompts, list(read_lines(f.prompts, PromptLine))[::-1]),
        "prompts.jsonl: sha256 ",
    ),
}


@pytest.mark.parametrize(("forge", "told"), FORGED.values(), ids=FORGED)
def test_whatever_is_forged_is_told(
    public: RunFolder, forge: Callable[[RunFolder], object], told: str
) -> None:
    forge(public)
    problems = verify(public).problems
    assert any(told in problem for problem in problems), problems
    assert not any("easier" in problem for problem in problems)


def test_rows_of_the_hub_are_held_by_their_text(tmp_path: Path) -> None:
    whole = load_set(SetSpec(name="embedded", count=4), evals_dir=None, seed=1)
    prompts = tuple(msgspec.structs.replace(p, row_sha256="0" * 64) for p in whole.prompts)
    hub = msgspec.structs.replace(
        whole, source="hub owner/name@rev", raw_sha256="1" * 64, merkle_root="2" * 64, prompts=prompts
    )
    assert verify(write(tmp_path / "hub", hub)).held == ("embedded",)
    folder = msgspec.structs.replace(hub, source="folder")
    assert len(verify(write(tmp_path / "folder", folder)).problems) == 3


def test_a_file_of_the_users_own_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(samples.lines({"prompt": "one?"}, {"prompt": "two?"}))
    own = load_set(SetSpec(name="own", path=str(path), count=2), evals_dir=None, seed=0)

    found = verify(write(tmp_path / "run", own))

    assert found.problems == found.held == ()
    assert found.notes == ("set own: a file of the user's own, held against nothing",)


def test_a_folder_without_a_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"job\.json"):
        verify(RunFolder(tmp_path))


@pytest.fixture
def unseen(place: Place) -> RunFolder:
    """Evidence on shard 000, as a confirmation leaves it."""

    def judge(request: Request) -> Outcome:
        folder = CampaignFolder(Path(request.campaign))
        campaign, _ = load_campaign(folder)
        data = folder.shard(request.shard).read_bytes()
        opening = open_shard(data, bytes.fromhex(request.key), campaign, request.shard, "shard")
        rows = write_evidence(Path(request.evidence), opening)
        spec = SetSpec(name=f"unseen-{request.shard}", path=str(rows), count=8, field="turns")
        drawn = msgspec.structs.replace(
            load_set(spec, evals_dir=None, seed=0),
            split=request.shard,
            merkle_root=campaign.shards[0].root,
        )
        write(Path(request.evidence), drawn)
        return Outcome(accepted=True)

    confirm(build.CANDIDATE, place.folder, place.root, evals_dir=None, now=lambda: build.NOW, judge=judge)
    return RunFolder(place.controller.evidence("000"))


def test_a_report_on_a_shard_holds_against_commitment_and_ledger(unseen: RunFolder, place: Place) -> None:
    assert verify(unseen, place.folder) == Sealed((), (), ("unseen-000",))
    assert "name its folder with --campaign" in verify(unseen).problems[0]


UNSEEN_FORGED: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "a prompt's text": (
        lambda f: change(f, _other_text),
        "prompts.jsonl does not hold the rows of shard 000",
    ),
    "the shard": (lambda f: retell(f, split="001"), "the report is on shard 001, the opening of 000"),
    "a row and its opening": (
        lambda f: (f.root / "opening.json").write_bytes(
            (f.root / "opening.json").read_bytes().replace(b"Item", b"Thing", 1)
        ),
        "its rows are not those committed to",
    ),
    "the report after the verdict": (
        lambda f: f.report_json.write_bytes(
            f.report_json.read_bytes().replace(b'"tokens":320', b'"tokens":321')
        ),
        "no verdict on shard 000 rests on this report",
    ),
}


@pytest.mark.parametrize(("forge", "told"), UNSEEN_FORGED.values(), ids=UNSEEN_FORGED)
def test_whatever_is_forged_about_a_shard_is_told_without_its_text(
    unseen: RunFolder, place: Place, forge: Callable[[RunFolder], object], told: str
) -> None:
    texts = [json.loads(line)["turns"][0] for line in (unseen.root / "shard.jsonl").read_text().splitlines()]
    forge(unseen)
    problems = verify(unseen, place.folder).problems
    assert any(told in problem for problem in problems), problems
    assert not any(text[:40] in problem for text in texts for problem in problems)


def test_an_opening_that_cannot_be_read_quotes_nothing(unseen: RunFolder, place: Place) -> None:
    path = unseen.root / "opening.json"
    path.write_bytes(path.read_bytes().replace(b'"salt"', b'"Item"', 1))
    with pytest.raises(DataError, match=r"opening\.json: is damaged or of another version"):
        verify(unseen, place.folder)


def test_a_report_is_held_against_the_campaign_it_was_made_in(
    unseen: RunFolder, place: Place, tmp_path: Path
) -> None:
    other = build.start(tmp_path / "other")
    assert any("belongs to another campaign" in problem for problem in verify(unseen, other.folder).problems)


def test_the_whole_set_is_verified_too(tmp_path: Path) -> None:
    whole = pinned_set(samples.entry("embedded"), None, hub=False)
    folder = write(tmp_path / "run", whole)
    copy = RunFolder(Path(shutil.copytree(folder.root, tmp_path / "copy")))
    assert verify(copy).held == ("embedded",)
