from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.drafters.shipped import TARGET, TrainedFor
from reference_mechanisms.drafters.training.corpus import Corpus, gather
from reference_mechanisms.drafters.training.plan import (
    DrafterSpec,
    ScheduleSpec,
    TextSpec,
    TrainingPlan,
    load_plan,
)
from reference_mechanisms.drafters.training.running import RECORD, Run, TrainingTarget, run_plan
from reference_mechanisms.errors import DrafterError
from tests.reference_mechanisms.drafters.training.targets import teacher_in, texts_of
from tests.reference_mechanisms.targets.models import CPU

PLAN = b"""
name = "tiny"
seed = 3
drafts = 3
mask_token = 5
[text]
copies = { gsm = [0.0, 0.7] }
[schedule]
steps = 8
[[drafter]]
name = "a"
kind = "dflash"
layers = 1
taps = [0]
inner = 8
"""
KINDS = ("dflash", "dflash2", "dspark", "eagle3")


def plan_of(*kinds: str, steps: int = 8, **drafter: Any) -> TrainingPlan:
    sizes = {"layers": 1, "taps": (0, 1), "inner": 24, "rank": 6, "group": 8, "learning_rate": 0.01} | drafter
    return TrainingPlan(
        name="tiny",
        seed=3,
        drafts=3,
        mask_token=5,
        text=TextSpec(),
        schedule=ScheduleSpec(
            steps=steps, sequences=4, anchors=6, longest=64, points=4, measures=1, measured=3
        ),
        drafter=tuple(DrafterSpec(name=f"my-{kind}", kind=kind, **sizes) for kind in kinds),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TrainingTarget:
    folder = tmp_path_factory.mktemp("target")
    teacher_in(folder)
    return TrainingTarget(folder, TrainedFor("tiny", "ab" * 32), (1,))


@pytest.fixture(scope="module")
def texts(target: TrainingTarget) -> Corpus:
    return texts_of(teacher_in(target.folder), 24)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    network = load_drafter(folder, torch.float32, CPU)
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def curve(folder: Path) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((folder / RECORD).read_text())["curve"]
    return found


def trained(plan: TrainingPlan, target: TrainingTarget, texts: Corpus, out: Path) -> dict[str, Any]:
    """Of each kind, what its record tells; the drafters lie where they can be loaded."""
    lines: list[str] = []
    assert run_plan(plan, "p", target, texts, texts, Run(out=out, said=lines.append))
    assert any("acceptance length" in line for line in lines)
    told: dict[str, Any] = {}
    for spec in plan.drafter:
        told[spec.kind] = json.loads((out / spec.name / RECORD).read_text())
        assert json.loads((out / spec.name / "config.json").read_text())[TARGET]["name"] == "tiny"
        assert load_drafter(out / spec.name, torch.float32, CPU).config.drafts == 3
    return told


@pytest.mark.parametrize(
    ("soft", "kinds"),
    [
        pytest.param(0.0, KINDS, id="tokens"),
        pytest.param(1.0, ("dspark", "eagle3"), id="distributions"),  # alone, so that wrong ones are seen
    ],
)
def test_drafters_begin_to_learn_what_the_target_writes(
    soft: float, kinds: tuple[str, ...], target: TrainingTarget, texts: Corpus, tmp_path: Path
) -> None:
    """A few steps on a few texts; without learning the acceptance length stays below 1.1."""
    plan = plan_of(*kinds, steps=80, soft_share=soft, learning_rate=0.02)
    few = texts.only(range(8))
    for kind, told in trained(plan, target, few, tmp_path).items():
        assert told["curve"][-1]["loss"] < (0.75 + 0.2 * soft) * told["curve"][0]["loss"], kind
        assert told["measured"][-1]["acceptance_length"] > 1.4, kind
        assert told["measured_as_stored"]["acceptance_length"] > 1.35, kind


@pytest.mark.slow
@pytest.mark.parametrize("soft", [0.0, 0.5], ids=["tokens", "tokens and distributions"])
def test_drafters_learn_what_the_target_writes(
    soft: float, target: TrainingTarget, texts: Corpus, tmp_path: Path
) -> None:
    """Few texts, learnt by heart: acceptance far above chance, for every kind."""
    plan = plan_of(*KINDS, steps=400, soft_share=soft)
    for told in trained(plan, target, texts, tmp_path).values():
        floor = 0.5 + soft  # the entropy of the distributions stays
        assert told["curve"][-1]["loss"] < floor * told["curve"][0]["loss"]
        assert told["measured"][-1]["acceptance_length"] > 2.0  # of at most 4
        assert told["measured_as_stored"]["acceptance_length"] > 1.9


@pytest.mark.parametrize("muon", [None, 0.01], ids=["adamw", "muon"])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    muon: float | None, target: TrainingTarget, texts: Corpus, tmp_path: Path
) -> None:
    plan = plan_of("dspark", "eagle3", muon_rate=muon)
    assert run_plan(plan, "p", target, texts, texts, Run(out=tmp_path / "whole"))
    stopping = Run(out=tmp_path / "parts", seconds=0.0)
    assert not run_plan(plan, "p", target, texts, texts, stopping)
    rounds = 0
    while not run_plan(plan, "p", target, texts, texts, replace(stopping, resume=True, seconds=0.05)):
        rounds += 1
        assert rounds < 100
    for kind in ("dspark", "eagle3"):
        one, other = weights(tmp_path / "whole" / f"my-{kind}"), weights(tmp_path / "parts" / f"my-{kind}")
        assert all(torch.equal(one[name], other[name]) for name in one)
        for at in ("whole", "parts"):
            assert [point["step"] for point in curve(tmp_path / at / f"my-{kind}")] == [2, 4, 6, 8]


def test_a_state_of_another_plan_is_refused(target: TrainingTarget, texts: Corpus, tmp_path: Path) -> None:
    plan = plan_of("dflash")
    stopping = Run(out=tmp_path, seconds=0.0)
    assert not run_plan(plan, "p", target, texts, texts, stopping)
    with pytest.raises(DrafterError, match="of another plan"):
        run_plan(plan, "q", target, texts, texts, replace(stopping, resume=True))
    with pytest.raises(DrafterError, match="without --resume"):
        run_plan(plan_of("dflash", inner=32), "p", target, texts, texts, replace(stopping, resume=True))
    with pytest.raises(DrafterError, match="cannot go on from"):
        run_plan(plan, "p", target, texts, texts, Run(out=tmp_path / "none", resume=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taps": (0, 2)}, "tap 2"),
        ({"taps": (0, 0)}, "tapped twice"),
        ({"group": 7}, "`group` 7"),
    ],
)
def test_a_drafter_that_does_not_fit_its_target_is_refused(
    change: dict[str, Any], message: str, target: TrainingTarget, texts: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(DrafterError, match=message):
        run_plan(plan_of("dflash2", **change), "p", target, texts, texts, Run(out=tmp_path))


def test_nothing_to_learn_from_is_refused(target: TrainingTarget, texts: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="empty"):
        run_plan(plan_of("dflash"), "p", target, gather([]), texts, Run(out=tmp_path))


def test_a_plan_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    good = PLAN
    path.write_bytes(good)
    assert load_plan(path).drafter[0].kind == "dflash"
    for old, new, message in (
        (b'kind = "dflash"', b'kind = "medusa"', "medusa"),
        (b"layers = 1", b"layers = 0", "layers"),
        (b"drafts = 3", b"draft = 3", "draft"),
        (b'name = "a"', b'name = "../a"', "plain `name`"),
        (b"seed = 3", b"seed = = 3", "not TOML"),
        (b"layers = 1", b"layers = 1\nsoft_share = 1.5", "soft_share"),
    ):
        assert old in good
        path.write_bytes(good.replace(old, new))
        with pytest.raises(DrafterError, match=message):
            load_plan(path)
