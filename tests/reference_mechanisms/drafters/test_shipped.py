from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference_mechanisms.drafters.loading import load_drafter, name_of
from reference_mechanisms.drafters.shipped import ROOT, Shipped, TrainedFor, find, shipped
from reference_mechanisms.errors import DrafterError


def folder(root: Path, target: str, drafter: str, **fields: Any) -> Path:
    at = root / target / drafter
    at.mkdir(parents=True)
    (at / "config.json").write_text(json.dumps(fields))
    return at


def test_every_folder_is_listed_with_its_target(tmp_path: Path) -> None:
    made = [
        Shipped(drafter, TrainedFor(target, sha256), folder(tmp_path, target, drafter, **told))
        for target, drafter, sha256, told in (
            ("big", "dflash", "bb", {"specpilot_target": {"name": "big", "sha256": "bb"}}),
            ("small", "dflash", "aa", {"specpilot_target": {"name": "small", "sha256": "aa"}}),
            ("small", "dspark", "aa", {"specpilot_target": {"name": "small", "sha256": "aa"}}),
        )
    ]
    assert shipped(tmp_path) == tuple(made)
    assert find("dflash", "aa", tmp_path) == made[1]
    assert find("dspark", "aa", tmp_path).name == "shipped small/dspark"


@pytest.mark.parametrize("sha256", ["cc", None])
def test_none_for_this_target_says_for_which(tmp_path: Path, sha256: str | None) -> None:
    folder(tmp_path, "small", "dflash", specpilot_target={"name": "small", "sha256": "aa"})
    with pytest.raises(DrafterError, match=r"trained for small \(aa\)"):
        find("dflash", sha256, tmp_path)


def test_none_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"no eagle3 comes with this package \(it has no drafter at all\)"):
        find("eagle3", "aa", tmp_path / "nowhere")


@pytest.mark.parametrize("told", [None, {"name": "small"}, {"sha256": "aa"}], ids=["nothing", "name", "sha"])
def test_a_folder_that_does_not_name_its_target_is_refused(tmp_path: Path, told: Any) -> None:
    folder(tmp_path, "small", "dflash", specpilot_target=told)
    with pytest.raises(DrafterError, match=r"`specpilot_target`: `(name|sha256)` must be a text"):
        shipped(tmp_path)


def test_what_is_shipped_here_is_what_its_folder_says() -> None:
    import torch  # noqa: PLC0415

    for one in shipped(ROOT):
        network = load_drafter(one.folder, torch.float32, torch.device("cpu"))
        assert (name_of(network.config), one.folder.parent.name) == (one.drafter, one.target.name)
