from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_loop.campaign import ExplorerSpec
from agent_loop.controller.database import Database
from agent_loop.explorers.knobs import Point, crossed, point_of
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.protocols import Edit, Knob, Space
from agent_loop.records import Budget, Candidate
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop
from tests.forking import in_fork

SPACES = (
    Space(
        mechanism="wide",
        backend=BACKEND,
        knobs=(Knob(name="width", values=(3, 4, 5, 6)), Knob(name="form", values=("a", "b"))),
    ),
)


SPEC: dict[str, Any] = {"name": "offline", "kind": "offline", "budget": Budget(trials=5)}


def proposed(root: Path, seed: int) -> list[tuple[str, str]]:
    root.mkdir()
    loop = make_loop(spaces=SPACES, seed=seed)
    stage = Stage(root, Host(root, lambda params: 1.0 + (int(params["width"]) - 2) / 20.0, noise=0.001), loop)
    stage.controller().run([OfflineExplorer("offline", batch=3)])
    database = Database(root / "loop.sqlite", str, must_exist=True)
    return [(one.id, one.origin) for one in database.candidates()]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """A search with seed 1, and its folder."""
    root = tmp_path_factory.mktemp("searched") / "a"
    return root, proposed(root, 1)


def test_a_seed_gives_one_search_and_another_seed_another(
    tmp_path: Path, searched: tuple[Path, list[tuple[str, str]]]
) -> None:
    assert proposed(tmp_path / "b", 1) == searched[1]
    assert proposed(tmp_path / "c", 2) != searched[1]


def test_one_that_is_started_anew_after_its_confirmation_asks_the_same(tmp_path: Path) -> None:
    """What was decided of its candidates meanwhile must not lead its sampler elsewhere."""

    def search(root: Path, deadly: str) -> list[str]:
        root.mkdir(exist_ok=True)
        loop = make_loop(spaces=SPACES, explorers=(ExplorerSpec(**SPEC),))
        speed = lambda params: 1.0 + (int(params["width"]) - 2) / 20.0  # noqa: E731

        def die(state: str) -> None:
            if state == deadly:
                os.kill(os.getpid(), signal.SIGKILL)

        Stage(root, Host(root, speed, noise=0.001), loop).controller(die).run(
            [OfflineExplorer("offline", batch=3)]
        )
        return [one.id for one in Database(root / "loop.sqlite", str, must_exist=True).candidates()]

    whole = search(tmp_path / "whole", "")
    assert in_fork(lambda: search(tmp_path / "killed", "ended")) == -signal.SIGKILL
    assert search(tmp_path / "killed", "") == whole


def test_the_null_control_is_tried_first_and_never_submitted(
    searched: tuple[Path, list[tuple[str, str]]],
) -> None:
    root, asked = searched
    assert asked[0][1] == "null"
    database = Database(root / "loop.sqlite", str, must_exist=True)
    submitted = [one.origin for one, _ in database.submissions()]
    assert submitted
    assert "null" not in submitted


def test_a_small_space_is_searched_to_its_end_and_left(tmp_path: Path) -> None:
    loop = make_loop(explorers=(ExplorerSpec(name="offline", kind="offline"),))
    stage = Stage(tmp_path, Host(tmp_path, lambda params: 1.0), loop)
    stage.controller().run([OfflineExplorer("offline", batch=3)])
    found = {str(one.params) for one in Database(tmp_path / "loop.sqlite", str, must_exist=True).candidates()}
    assert found == {str({"width": n}) for n in (2, 3, 4, 6)}


EDITED = (
    Space(
        mechanism="edited n-gram drafts",
        backend="reference_mechanisms.backend:open_session",
        knobs=(Knob(name="width", values=(3, 4)), Knob(name="form", values=("a", "b"))),
        edits=(
            Edit(
                name="most",
                module="reference_mechanisms.drafters.ngram",
                kind="schedule",
                at="NgramDrafter._one",
                values=(0, 1, 2),
                old="min(self._drafts, limit)",
                new="min(self._drafts, limit, {value})",
            ),
        ),
    ),
)


def edited(root: Path) -> list[Candidate]:
    root.mkdir()
    budget = Budget(trials=8)
    explorer = ExplorerSpec(name="offline", kind="offline", batch=3, budget=budget)
    loop = make_loop(spaces=EDITED, explorers=(explorer,), seed=3)
    host = Host(root, lambda params: 1.0 + (int(params.get("width", 2)) - 2) / 20.0, noise=0.001)
    stage = Stage(root, host, loop)
    stage.controller().run([OfflineExplorer("offline", batch=3)])
    return Database(root / "loop.sqlite", str, must_exist=True).candidates()


def test_edits_are_searched_like_knobs_and_travel_as_patches(tmp_path: Path) -> None:
    found, again = edited(tmp_path / "a"), edited(tmp_path / "b")
    assert [one.id for one in found] == [one.id for one in again]
    patched = [one for one in found if one.origin == "transform"]
    plain = [one for one in found if one.origin == "search"]
    assert plain
    assert all(one.patch is None for one in plain)
    assert len({one.patch for one in patched}) == 2  # one of each changed value
    for one in patched:
        assert one.patch is not None
        assert one.backend == "edited_engine:open_session"
        assert "limit, 1)" in one.patch or "limit, 2)" in one.patch
        assert one.patch.count("+++ b/") == 2  # nothing of an earlier candidate was left in the worktree


def test_points_of_one_space_are_crossed_value_by_value() -> None:
    (space,) = EDITED
    first = Point(space, {"width": 3, "form": "a", "most": 0})
    second = Point(space, {"width": 4, "form": "a", "most": 2})
    assert [one.values for one in crossed(first, second)] == [
        {"width": 3, "form": "a", "most": 2},
        {"width": 4, "form": "a", "most": 0},
    ]
    assert list(crossed(first, Point(SPACES[0], {"width": 4, "form": "b"}))) == []
    assert point_of(space, space.backend, {"width": 3, "form": "a"}) == first
    assert point_of(space, space.backend, {"width": 9, "form": "a"}) is None
    assert point_of(space, BACKEND, {"width": 3, "form": "a"}) is None
    assert point_of(space, space.backend, {"width": 3}) is None
