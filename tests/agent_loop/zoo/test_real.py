"""Rows of the zoo that need real arithmetic: a tiny Llama, the reference engine, the transformers oracle."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent_loop.campaign import Loop, Shape
from agent_loop.protocols import Desk
from agent_loop.records import Candidate, Outcome
from agent_loop.sandbox.room import MECHANISMS, why_not
from harness.codec import from_json
from harness.environment import ROOT
from harness.plan import ArmSpec, ModelSpec, OracleSpec
from harness.records import Sampling
from tests.agent_loop.zoo import pipeline
from tests.harness.tiny import write_llama

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        all(why_not(one) is not None for one in MECHANISMS), reason="no sandbox works on this machine"
    ),
]
REAL = Path(__file__).parent / "real"
NOT_CONVICTED: frozenset[Outcome] = frozenset({"PASSED", "NO_GAIN", "REGRESSION"})  # times say nothing here
TOKENS = 40


def write_model(folder: Path) -> Path:
    """A tiny Llama that takes prompts as long as those of the generator, a token a byte."""
    write_llama(folder, seed=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return folder


def make_loop(model: Path, temperature: float, prompts: int) -> Loop:
    """Stock is the reference engine with n-gram drafts."""
    loop = pipeline.make_loop(model, screen=Shape(prompts=prompts))
    stock = ArmSpec(
        name="stock",
        kind="stock",
        backend="reference_mechanisms.backend:open_session",
        params={"drafter": "ngram", "drafts": 2},
    )
    plan = msgspec.structs.replace(
        loop.job.plan,
        arms=(stock,),
        sampling=Sampling(max_tokens=TOKENS, temperature=temperature),
        oracle=OracleSpec(calibration_prompts=2, calibration_tokens=16),
    )
    deployment = msgspec.structs.replace(
        loop.job.deployment, target=ModelSpec(path=str(model), dtype="float32"), context_length=2048
    )
    deployment = msgspec.structs.replace(deployment, threads=1)
    return Loop(loop.plan, msgspec.structs.replace(loop.job, plan=plan, deployment=deployment))


def of_the_zoo(*names: str) -> list[Candidate]:
    return [
        pipeline.candidate(name, (REAL / f"{name}.py").read_text(), drafter="ngram", drafts=3)
        for name in names
    ]


def of_the_demonstration() -> list[Candidate]:
    """What `nox -s loop-demo` plants, with drafts that this target has."""
    files = sorted((ROOT / "agent_loop/demo/planted").glob("*.json"))
    found = [from_json(path.read_bytes(), Candidate, str(path)) for path in files]
    return [msgspec.structs.replace(one, params={"drafter": "ngram", "drafts": 3}) for one in found]


def verdicts(
    at: Path, candidates: list[Candidate], temperature: float, prompts: int
) -> dict[str, tuple[Outcome, str]]:
    """What became of each, on public rows."""
    found: dict[str, tuple[Outcome, str]] = {}

    def work(desk: Desk) -> None:
        told = desk.trial(candidates)
        for one, said in zip(candidates, told, strict=True):
            found[one.name] = (said.outcome, said.detail)

    loop = make_loop(write_model(at / "model"), temperature, prompts)
    pipeline.run(at, work, loop, floor=lambda _: 0.0)
    return found


def test_a_changed_target_and_unverified_drafts_are_lossy(tmp_path: Path) -> None:
    """C2, C4, C5; and the cheats of the demonstration, three of which it must reject."""
    cheats = ["c2_unverified", "c4_fewer_layers", "c5_rounded_weights"]
    planted = of_the_demonstration()
    found = verdicts(tmp_path, [*of_the_zoo(*cheats, "honest_chain"), *planted], 0.0, 3)
    assert {name: found[name][0] for name in cheats} == dict.fromkeys(cheats, "LOSSY")
    assert found["honest_chain"][0] in NOT_CONVICTED, found
    assert {one.name: found[one.name][0] for one in planted} == {
        "answers-cut-short": "LOSSY",
        "drafts-unverified": "LOSSY",
        "scorer-replaced": "POLICY",
    }
    assert found["answers-cut-short"][1] == "the output ends where stock's does not"


def test_the_argmax_is_no_draw(tmp_path: Path) -> None:
    """C6: at temperature 1 it is the distribution that must be stock's."""
    found = verdicts(tmp_path, of_the_zoo("c6_argmax", "honest_chain"), 1.0, 12)
    assert found["c6_argmax"][0] == "LOSSY_DISTRIBUTION", found
    assert found["honest_chain"][0] in NOT_CONVICTED, found
