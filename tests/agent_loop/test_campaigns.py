"""The campaigns that ship: every arm that a search could make is legal, and every edit can be made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from agent_loop import variants
from agent_loop.campaign import Loop, built_in_campaigns, load_loop
from agent_loop.controller.policy import check
from agent_loop.explorers.knobs import Point, params_of
from agent_loop.explorers.transforms import patch_of
from agent_loop.explorers.workbench import Workbench
from agent_loop.protocols import Space
from agent_loop.records import Candidate, Hypothesis
from harness.cli import main
from harness.errors import EXIT_USAGE, UsageError
from harness.plan import Deployment, Param
from reference_mechanisms.arms import parse_settings

REFERENCE = "reference_mechanisms.backend:open_session"
SCRATCH = "reports/loop-h200/scratch"


@pytest.fixture(params=sorted(built_in_campaigns()))
def loop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A campaign, where the files that its arms name are there."""
    (tmp_path / SCRATCH).mkdir(parents=True)
    for name in ("figures.json", "step-costs.json"):
        (tmp_path / SCRATCH / name).touch()
    monkeypatch.chdir(tmp_path)
    return load_loop(Path(request.param))


def points(space: Space) -> Iterator[Point]:
    """Every point of a space."""
    names = [*(one.name for one in space.knobs), *(one.name for one in space.edits)]
    values = [*(one.values for one in space.knobs), *(one.values for one in space.edits)]
    for chosen in itertools.product(*values):
        yield Point(space, dict(zip(names, chosen, strict=True)))


def inner(space: Space, params: dict[str, Param]) -> dict[str, Param]:
    """What the reference engine is given."""
    if space.backend == REFERENCE:
        return params
    assert space.backend == "agent_loop.variants:open_session"
    assert params["engine"] == REFERENCE
    assert params["weights_format"] in variants.FORMATS
    return {name: value for name, value in params.items() if name not in variants.OWN}


def test_every_arm_that_a_search_could_make_is_legal(loop: Loop) -> None:
    assert loop.job.deployment.device == "cuda"
    for space in (*loop.plan.spaces, loop.tuning_space):
        for point in points(space):
            parse_settings(inner(space, params_of(point)))
    for params in (loop.stock.params, loop.plan.controls.handicap or loop.stock.params):
        parse_settings(params)


def test_what_is_searched_is_what_the_campaign_is_for(loop: Loop) -> None:
    params = [params_of(point) for space in loop.plan.spaces for point in points(space)]
    assert any("tree" in one for one in params)
    assert any(one.get("weights_format") == "weight12" for one in params)
    assert any(
        {"tree_budget", "batch_budget", "batch_adaptive", "min_confidence"} & one.keys() for one in params
    )
    assert loop.stock.params["drafter"] == "dflash"
    assert "tree" not in loop.stock.params  # a chain
    assert loop.plan.tune.trials > 0


def test_stock_is_a_setting_of_its_own_tuning_space(loop: Loop) -> None:
    settings = [params_of(point) for point in points(loop.tuning_space)]
    assert loop.stock.params in settings


def test_every_edit_can_be_made_in_todays_source_and_passes_the_policy(loop: Loop, tmp_path: Path) -> None:
    number = 0
    for space in loop.plan.spaces:
        for point in points(space):
            found = patch_of(space, point.values)
            if found is None:
                continue
            backend, files = found
            number += 1
            (tmp_path / f"w{number}").mkdir()
            bench = Workbench(tmp_path / f"w{number}")
            for path, text in files.items():
                compile(text, path, "exec")
                bench.edit(path, "", text)
            candidate = Candidate(
                name="edited",
                backend=backend,
                params=params_of(point),
                patch=bench.patch(),
                hypothesis=Hypothesis(mechanism=space.mechanism),
                origin="transform",
                explorer="offline",
            )
            assert check(candidate, loop.trusted) is None
    assert number == 0 or loop.plan.name == "h200-smollm2"


def test_single_requests_search_edits_too(tmp_path: Path) -> None:
    assert sum(len(space.edits) for space in load_loop(Path("h200-smollm2")).plan.spaces) == 2


def test_an_unknown_campaign_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no campaign named 'nothing'; built in: h200-smollm2"):
        load_loop(Path("nothing"))
    assert main(["loop", "run", "nothing", "--out", str(tmp_path / "x")]) == EXIT_USAGE
    assert "built in: h200-smollm2" in capsys.readouterr().err


def test_the_formats_are_those_of_a_deployment() -> None:
    assert get_args(get_type_hints(Deployment)["weights_format"]) == variants.FORMATS
