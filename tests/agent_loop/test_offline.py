from __future__ import annotations

from pathlib import Path

from agent_loop.controller.database import Database
from agent_loop.explorers.offline import OfflineExplorer
from agent_loop.protocols import Knob, Space
from tests.agent_loop.simulated import BACKEND, Host, Stage, make_loop

SPACES = (
    Space(
        mechanism="wide",
        backend=BACKEND,
        knobs=(Knob(name="width", values=(3, 4, 5, 6)), Knob(name="form", values=("a", "b"))),
    ),
)


def proposed(root: Path, seed: int) -> list[tuple[str, str]]:
    root.mkdir()
    loop = make_loop(spaces=SPACES, seed=seed)
    stage = Stage(root, Host(root, lambda params: 1.0 + (int(params["width"]) - 2) / 20.0, noise=0.001), loop)
    stage.controller().run([OfflineExplorer("offline", batch=3)])
    database = Database(root / "loop.sqlite", str, readonly=True)
    return [(one.id, one.origin) for one in database.candidates()]


def test_a_seed_gives_one_search_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (proposed(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first == again
    assert first != other


def test_the_null_control_is_tried_first_and_never_submitted(tmp_path: Path) -> None:
    root = tmp_path / "a"
    assert proposed(root, 1)[0][1] == "null"
    database = Database(root / "loop.sqlite", str, readonly=True)
    submitted = [one.origin for one, _ in database.submissions()]
    assert submitted
    assert "null" not in submitted


def test_a_small_space_is_searched_to_its_end_and_left(tmp_path: Path) -> None:
    loop = make_loop(explorers=(make_loop().plan.explorers[0].__class__(name="offline", kind="offline"),))
    stage = Stage(tmp_path, Host(tmp_path, lambda params: 1.0), loop)
    stage.controller().run([OfflineExplorer("offline", batch=3)])
    found = {str(one.params) for one in Database(tmp_path / "loop.sqlite", str, readonly=True).candidates()}
    assert found == {str({"width": n}) for n in (2, 3, 4, 6)}
