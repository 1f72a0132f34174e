from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from harness.errors import DataError, InvalidRun, ModelError, UsageError
from sealed_evals.campaign import crypto
from sealed_evals.campaign.commitment import check_opening, check_root, shard_root
from sealed_evals.campaign.controller import refuse_unsafe_place
from sealed_evals.campaign.records import ShardOpening
from sealed_evals.campaign.vault import load_campaign, open_shard, shard_key
from tests.sealed_evals.campaign import build
from tests.sealed_evals.campaign.build import Place


def opened(place: Place, name: str = "001") -> ShardOpening:
    data = place.folder.shard(name).read_bytes()
    return open_shard(data, shard_key(place.secret, name), place.campaign, name, "shard")


def texts(opening: ShardOpening) -> list[str]:
    """The rows as they stand in their files, from behind the canary on."""
    return [row.line.partition(".\\n")[2] for row in opening.rows]


def test_a_sealed_shard_comes_back_as_it_was_committed_to(place: Place) -> None:
    opening = opened(place)

    assert len(opening.rows) == 8
    assert shard_root(opening.rows) == place.campaign.shards[1].root
    assert all(json.loads(row.line)["id"].startswith("001/") for row in opening.rows)


def test_nothing_in_the_campaigns_folder_tells_an_unseen_row_or_the_key(place: Place) -> None:
    everything = b"\0".join(path.read_bytes() for path in place.folder.root.rglob("*") if path.is_file())

    assert place.secret not in everything
    assert place.secret.hex().encode() not in everything
    for name in ("000", "001", "002"):
        assert all(len(text) > 20 for text in texts(opened(place, name)))
        for row, text in zip(opened(place, name).rows, texts(opened(place, name)), strict=True):
            assert text.encode() not in everything
            assert row.salt.encode() not in everything
    public = place.folder.public.read_text().split("\n")[0]
    assert public.partition(".\\n")[2].encode() in everything  # the search can find something


def test_each_shard_has_a_key_of_its_own(place: Place) -> None:
    data = place.folder.shard("001").read_bytes()
    with pytest.raises(DataError, match="the key is not its key, or a byte was changed"):
        open_shard(data, shard_key(place.secret, "000"), place.campaign, "001", "shard")
    with pytest.raises(DataError, match="the key is not its key, or a byte was changed"):
        open_shard(data, shard_key(place.secret, "001"), place.campaign, "000", "shard")


@pytest.mark.parametrize("at", [0, 11, 12, 200, -1])
def test_any_changed_byte_of_a_shard_is_found_and_no_text_is_told(place: Place, at: int) -> None:
    data = bytearray(place.folder.shard("001").read_bytes())
    data[at] ^= 0x80

    with pytest.raises(DataError) as caught:
        open_shard(bytes(data), shard_key(place.secret, "001"), place.campaign, "001", "shard")
    assert not any(text in str(caught.value) for text in texts(opened(place)))


@pytest.mark.parametrize("size", [0, 5, 12, 30])
def test_a_shard_that_was_cut_is_refused(place: Place, size: int) -> None:
    data = place.folder.shard("001").read_bytes()[:size]
    with pytest.raises(DataError, match="a byte was changed"):
        open_shard(data, shard_key(place.secret, "001"), place.campaign, "001", "shard")


def test_a_swapped_row_does_not_fit_the_published_root(place: Place) -> None:
    opening = opened(place)
    first, second, *rest = opening.rows
    for rows in (
        (second, first, *rest),
        (first, second),
        (*opening.rows, first),
        (msgspec.structs.replace(first, line=first.line.replace("a", "b", 1)), second, *rest),
        (msgspec.structs.replace(first, salt="00" * 32), second, *rest),
        (msgspec.structs.replace(first, salt="not hex"), second, *rest),
    ):
        with pytest.raises(DataError) as caught:
            check_opening(msgspec.structs.replace(opening, rows=rows), place.campaign)
        assert "shard 001 of campaign" in str(caught.value)
        assert not any(text in str(caught.value) for text in texts(opening))


def test_an_opening_of_another_shard_or_campaign_is_refused(place: Place) -> None:
    for change in ({"shard": "002"}, {"shard": "777"}, {"campaign_id": "other"}):
        with pytest.raises(DataError):
            check_opening(msgspec.structs.replace(opened(place), **change), place.campaign)


def test_the_salt_hides_a_row_that_is_guessed(place: Place) -> None:
    """Same row, other salt: another leaf, so that a guess cannot be confirmed from the roots."""
    row = opened(place).rows[0]
    assert shard_root([row]) != shard_root([msgspec.structs.replace(row, salt="ab" * 32)])
    assert len({one.salt for one in opened(place).rows}) == 8


def test_the_root_is_over_every_shard(place: Place) -> None:
    campaign = place.campaign
    swapped = msgspec.structs.replace(campaign, shards=campaign.shards[::-1])
    with pytest.raises(DataError, match="its root is not that of its shards"):
        check_root(swapped)


def test_a_folder_without_a_campaign_is_named(tmp_path: Path) -> None:
    from sealed_evals.campaign.vault import CampaignFolder  # noqa: PLC0415

    with pytest.raises(DataError, match=r"campaign\.json.*give the folder of a campaign"):
        load_campaign(CampaignFolder(tmp_path))


def test_the_key_lies_out_of_reach_or_is_not_written(tmp_path: Path) -> None:
    campaign, tree = tmp_path / "campaign", tmp_path / "tree"
    (tree / ".git").mkdir(parents=True)
    (tmp_path / "open").mkdir(mode=0o755)

    with pytest.raises(UsageError, match="overlap"):
        refuse_unsafe_place(campaign / "keys", campaign)
    with pytest.raises(UsageError, match="overlap"):
        refuse_unsafe_place(tmp_path, campaign)
    with pytest.raises(UsageError, match=r"lies in the git tree .*/tree"):
        refuse_unsafe_place(tree / "deep" / "keys", campaign)
    with pytest.raises(InvalidRun, match="chmod 700"):
        refuse_unsafe_place(tmp_path / "open", campaign)
    refuse_unsafe_place(tmp_path / "new", campaign)


def test_the_key_is_its_owners_alone(place: Place) -> None:
    assert place.controller.key.stat().st_mode & 0o077 == 0
    assert place.root.stat().st_mode & 0o077 == 0


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys  # noqa: PLC0415

    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)

    with pytest.raises(ModelError, match=r"pip install 'specpilot-harness\[campaign\]'"):
        build.start(tmp_path)
    with pytest.raises(ModelError):
        crypto.encrypt(b"", b"k" * 32, "x")
    with pytest.raises(ModelError):
        crypto.decrypt(b"", b"k" * 32, "x", "y")
    assert not (tmp_path / "campaign").exists()
