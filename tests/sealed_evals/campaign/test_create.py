from __future__ import annotations

import json
from collections import Counter

import pytest

from harness.codec import canonical_json
from harness.errors import UsageError
from harness.plan import SetSpec
from sealed_evals.campaign.create import create, deal
from sealed_evals.campaign.records import Campaign, Sizing
from sealed_evals.campaign.sizing import rows_needed
from sealed_evals.campaign.vault import CampaignFolder, open_shard, shard_key
from sealed_evals.generator.make import KINDS, Drafted
from sealed_evals.load import load_set
from tests.sealed_evals.campaign import build
from tests.sealed_evals.campaign.build import Place


def rows_of(place: Place) -> dict[str, list[str]]:
    """Texts without canaries, by shard."""
    lines = {"public": place.folder.public.read_text().splitlines()}
    for seal in place.campaign.shards:
        data = place.folder.shard(seal.name).read_bytes()
        opening = open_shard(data, shard_key(place.secret, seal.name), place.campaign, seal.name, "shard")
        lines[seal.name] = [row.line for row in opening.rows]
    return {
        name: [json.loads(line)["turns"][0].partition("\n")[2] for line in found]
        for name, found in lines.items()
    }


def test_the_shards_are_disjoint_and_as_large_as_said(place: Place) -> None:
    rows = rows_of(place)

    assert {name: len(found) for name, found in rows.items()} == {
        "public": 10,
        "000": 8,
        "001": 8,
        "002": 8,
    }
    assert len({text for found in rows.values() for text in found}) == 34


def test_every_shard_holds_every_kind_in_proportion() -> None:
    drafted = [Drafted(kind.name, (f"{kind.name} {n}",)) for n in range(30) for kind in KINDS]
    sizes = {"public": 80} | {f"{n:03}": 16 for n in range(10)}

    dealt = deal(drafted, sizes, b"k" * 32)

    assert {name: len(rows) for name, rows in dealt.items()} == sizes
    assert sorted(row for rows in dealt.values() for row in rows) == sorted(drafted)
    for name, rows in dealt.items():
        counts = Counter(row.kind for row in rows)
        assert all(abs(counts[kind.name] - sizes[name] / 8) <= 1 for kind in KINDS), (name, counts)


def test_which_row_is_public_hangs_on_the_secret_alone() -> None:
    drafted = [Drafted("task", (f"row {n}",)) for n in range(60)]
    sizes = {"public": 20, "000": 20, "001": 20}
    one, again, other = (deal(drafted, sizes, key)["public"] for key in (b"a" * 32, b"a" * 32, b"b" * 32))

    assert one == again
    assert len(set(one) & set(other)) < 20
    assert deal(drafted[::-1], sizes, b"a" * 32)["public"] == one  # not on the order of making


def test_two_campaigns_share_hardly_a_row(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Some problems have few variants, so one of them may come again: one pair in 160 shares a row."""
    other = build.start(tmp_path_factory.mktemp("other"))
    mine = {text for found in rows_of(place).values() for text in found}
    assert len(mine & {text for found in rows_of(other).values() for text in found}) <= len(mine) // 10
    assert other.campaign.root != place.campaign.root


def test_public_rows_are_a_set_for_every_plan(place: Place) -> None:
    spec = SetSpec(name="ours", path=str(place.folder.public), field="turns", count=10)
    assert len(load_set(spec, evals_dir=None, seed=0).prompts) == 10


def test_the_published_record_says_what_will_be_run(place: Place) -> None:
    job = place.campaign.job
    assert [(arm.name, arm.kind) for arm in job.plan.arms] == [("stock", "stock")]
    assert job.plan.stats.confidence == 0.95
    assert [(spec.name, spec.count, spec.path) for spec in job.plan.sets] == [("unseen", 8, None)]
    assert canonical_json(place.campaign) + b"\n" == place.folder.campaign.read_bytes()


BAD = {
    "no shard": ({"shards": 0}, "--shards, --public-rows and --shard-rows must be at least 1"),
    "too many": ({"shards": 1000}, "--shards must be at most 999, got 1000"),
    "a negative gain": ({"gain": -0.1}, "--gain at least 0"),
    "a level of one half": ({"level": 0.5}, "--level must lie between 0 and 0.5, got 0.5"),
    "a level that no shard is large enough for": (
        {"level": 0.0, "rows": None},
        "--level must lie between 0 and 0.5, got 0.0",
    ),
    "no stock": (
        {"job": build.make_job(arms=build.make_job().plan.arms[:1])},
        "has no arm of kind 'stock' to confirm candidates against",
    ),
    "synthetic acceptance": (
        {"job": build.make_job(division="synthetic")},
        "nothing in the division 'synthetic' can be confirmed",
    ),
}


@pytest.mark.parametrize(("fields", "told"), BAD.values(), ids=BAD)
def test_a_campaign_that_cannot_be_is_refused_before_anything_is_written(
    fields: dict[str, object], told: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = tmp_path_factory.mktemp("bad")
    with pytest.raises(UsageError, match=told):
        build.start(at, **fields)
    assert list(at.iterdir()) == []


def test_a_folder_that_is_in_use_is_left_alone(place: Place) -> None:
    with pytest.raises(UsageError, match="is not empty; a campaign wants a folder of its own"):
        create(
            build.wanted(),
            CampaignFolder(place.folder.root),
            place.root,
            build.NOTHING_KNOWN,
            build.NOW,
        )


def test_shards_are_large_enough_for_the_gain_that_shall_be_confirmed(made: Place) -> None:
    usual = Sizing(gain=0.05, spread=0.1, power=0.8)
    assert rows_needed(usual, level=0.05) == 35  # (1.96 + 0.84)^2 * (0.1 / 0.0488)^2 = 33, and 2 for Student
    finer = Sizing(gain=0.025, spread=0.1, power=0.8)
    assert rows_needed(finer, level=0.05) > 3.5 * rows_needed(usual, level=0.05)
    assert rows_needed(usual, level=0.001) > rows_needed(usual, level=0.05)
    assert rows_needed(usual, level=0.05, gain=0.02) > rows_needed(usual, level=0.05)
    for sizing in (
        Sizing(gain=0.0, spread=0.1, power=0.8),
        Sizing(gain=0.1, spread=0.0, power=0.8),
        Sizing(gain=0.1, spread=0.1, power=1.0),
    ):
        with pytest.raises(UsageError):
            rows_needed(sizing, level=0.05)


def test_the_size_of_a_shard_is_in_the_published_record(made: Place) -> None:
    assert isinstance(made.campaign, Campaign)
    assert made.campaign.sizing == Sizing(gain=0.05, spread=0.1, power=0.8)
