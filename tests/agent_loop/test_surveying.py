"""Before a campaign searches, the cost model asks where stock's time goes; what fails there stops nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_loop.assembling import Folders
from agent_loop.campaign import Loop, Survey
from agent_loop.commands import _floors
from agent_loop.cost_model import machine, surveying
from agent_loop.cost_model.ceiling import CeilingModel
from agent_loop.cost_model.profiling import Traced
from agent_loop.cost_model.surveying import survey
from agent_loop.executors.protocol import TrialFailed
from harness.codec import from_json
from harness.errors import InvalidRun, UsageError
from harness.oracle.stored import StoredRun
from harness.plan import Job, MeasureSpec, ModelSpec
from harness.records import Prompt, PromptLine
from tests.agent_loop.simulated import Host, make_loop
from tests.agent_loop.test_cost_model import MACHINE, MODEL
from tests.harness.tiny import write_llama

LINE = PromptLine(
    prompt=Prompt(prompt_id="p", set_name="own", category="own", turns=("x",), row_sha256="0" * 64),
    token_ids=(1, 2),
)


class Probed(Host):
    """Runs a probe."""

    broken = False

    def measure(self, job: Job, folder: Path) -> StoredRun:
        self.runs.append((folder.name, len(job.plan.arms)))
        if self.broken:
            raise TrialFailed("specpilot-harness: no such engine", 2)
        return self.run(job, "x")._replace(prompts=(LINE,))


def loop_with(batch: int = 1, **wanted: Any) -> Loop:
    loop = make_loop(survey=Survey(**({"trace": False} | wanted)))
    plan = msgspec.structs.replace(loop.job.plan, measure=MeasureSpec(launches=1, blocks=1, batch=batch))
    return Loop(loop.plan, msgspec.structs.replace(loop.job, plan=plan))


@pytest.fixture
def host(tmp_path: Path) -> Probed:
    return Probed(tmp_path, lambda params: 1.0)


def asked(loop: Loop, host: Probed, at: Path) -> tuple[CeilingModel | None, list[str]]:
    said: list[str] = []
    return survey(loop, MACHINE, MODEL, host, at / "ceiling.json", said.append), said


def test_the_gaps_of_stock_are_told_and_kept(host: Probed, tmp_path: Path) -> None:
    found, said = asked(loop_with(prompts=2, tokens=8), host, tmp_path)
    assert found is not None
    assert {"prefill", "acceptance", "weights"} <= {gap.component for gap in found.gaps}
    assert from_json((tmp_path / "ceiling.json").read_bytes(), CeilingModel, "kept") == found
    (line,) = said
    assert "1 arms" in line


def test_a_trace_that_cannot_be_made_leaves_the_fit(
    host: Probed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> Traced:
        raise InvalidRun("stock was not traced: no engine")

    monkeypatch.setattr(surveying, "trace_stock", refused)  # it starts a process, which takes seconds
    found, said = asked(loop_with(trace=True), host, tmp_path)
    assert found is not None
    assert "its stages are fitted from the arms instead" in said[-1]


@pytest.mark.parametrize("case", ["none", "batch", "broken"])
def test_where_nothing_can_be_told_the_campaign_goes_on(host: Probed, tmp_path: Path, case: str) -> None:
    host.broken = case == "broken"
    wanted = loop_with(prompts=0) if case == "none" else loop_with(batch=4 if case == "batch" else 1)
    found, said = asked(wanted, host, tmp_path)
    assert found is None
    assert not (tmp_path / "ceiling.json").exists()
    assert len(host.runs) == (case == "broken")
    assert bool(said) == (case != "none")


def test_a_campaign_that_goes_on_keeps_its_gaps_and_floors(
    host: Probed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "REPEATS", 2)  # any peaks will do
    loop = loop_with(prompts=1, tokens=8)
    target = ModelSpec(path=str(write_llama(tmp_path / "model")), dtype="float32")
    deployment = msgspec.structs.replace(loop.job.deployment, target=target)
    loop = Loop(loop.plan, msgspec.structs.replace(loop.job, deployment=deployment))
    folders = Folders(tmp_path / "run")
    folders.root.mkdir()
    _, first = _floors(loop, None, folders, host)
    _, again = _floors(loop, None, folders, host)
    assert first is not None
    assert again == first
    assert len(host.runs) == 1
    other = Folders(tmp_path / "other")
    other.root.mkdir()
    _, given = _floors(loop, folders.ceiling, other, host)
    assert given == first
    assert other.ceiling.is_file()  # kept for a campaign that goes on
    with pytest.raises(UsageError, match=r"--ceiling: .*nothing.json: cannot be read"):
        _floors(loop, tmp_path / "nothing.json", other, host)


def test_a_survey_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`tokens` at least 1"):
        Survey(tokens=0)
