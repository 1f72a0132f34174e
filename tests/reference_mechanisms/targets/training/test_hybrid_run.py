"""A whole run, small: target, text of its own, drafter; a target that is there is taken as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.loading import load_drafter
from reference_mechanisms.drafters.training.carding import DataFacts, Story
from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather
from reference_mechanisms.drafters.training.plan import load_plan
from reference_mechanisms.targets.training import running, vocabulary
from reference_mechanisms.targets.training.plan import HybridPlan, Pretraining, Sizes, Writing
from reference_mechanisms.targets.training.running import Outside, train_hybrid
from reference_mechanisms.targets.training.storing import load_network
from tests.reference_mechanisms.targets.training.test_hybrid_training import SIZES

DRAFTER = """
name = "small"
licence = "Apache-2.0"
seed = 1
drafts = 3
mask_token = 0
[text]
[schedule]
steps = 2
sequences = 2
anchors = 2
longest = 64
measures = 1
[[drafter]]
name = "dflash"
kind = "dflash"
layers = 1
taps = [0, 1]
inner = 16
"""


def chats(first: int, count: int) -> Corpus:
    row = [*range(3, 60)] * 3
    return gather(
        [Example(tuple(row[at : at + 9]), tuple(row[at + 9 : at + 60]), "gsm8k", 0.0)
         for at in range(first, first + count)]
    )  # fmt: skip


def plan_of(steps: int) -> HybridPlan:
    return HybridPlan(
        name="small",
        seed=1,
        sizes=Sizes(**SIZES),
        pretraining=Pretraining(steps=steps, sequences=2, positions=48, points=2),
        writing=Writing(prompts=6, new_tokens=12, together=4),
    )


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def run(into: Path, plan: HybridPlan, said: list[str]) -> Path:
    (into.parent / "drafter.toml").write_text(DRAFTER, encoding="utf-8")
    nothing = DataFacts(examples=0, left_out=0, repetitions=0, words=8, held_out=0)

    def draw(*_: object) -> str:
        return "<svg/>"

    def sound(text: Sequence[int]) -> bool:
        return bool(text)

    outside = Outside(
        out=into,
        tokenizer=into.parent / "tokenizer",
        seconds=None,
        digest=digest,
        counts=sound,
        said=said.append,
        story=Story("a command", "a commit", "2026-12-03", nothing),
        draw=draw,
        device="cpu",
    )
    drafter = load_plan(into.parent / "drafter.toml")
    return train_hybrid(plan, drafter, chats(0, 40), chats(41, 4), outside)


def test_a_run_leaves_target_and_drafter_and_takes_a_target_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer").mkdir()
    vocabulary.store(vocabulary.learn(["count the words"], 280), tmp_path / "tokenizer")
    out = tmp_path / "run"
    said: list[str] = []
    folder = run(out, plan_of(2), said)
    before = digest(folder)
    network = load_network(folder, torch.float32, torch.device("cpu"))
    assert sum(one.numel() for one in network.parameters()) == int(said[0].split()[0])
    drafter = load_drafter(out / "dflash", torch.float32, torch.device("cpu"))
    assert drafter is not None
    assert before in (out / "dflash" / "README.md").read_text(encoding="utf-8")

    def again(*_: object, **__: object) -> None:
        raise AssertionError("the target is trained anew")

    monkeypatch.setattr(running, "pretrain", again)
    (tmp_path / "more").mkdir()
    (out / "small").rename(tmp_path / "more" / "small")  # only the target: its drafter was lost
    assert digest(run(tmp_path / "more", plan_of(2), [])) == before
    assert (tmp_path / "more" / "dflash" / "model.safetensors").is_file()
    with pytest.raises(AssertionError, match="trained anew"):
        run(tmp_path / "more", plan_of(3), [])
    (tmp_path / "more" / "small" / "README.md").unlink()  # as if cut short before its card
    with pytest.raises(AssertionError, match="trained anew"):
        run(tmp_path / "more", plan_of(2), [])


def test_the_plans_are_named_by_their_place_in_the_package(tmp_path: Path) -> None:
    from reference_mechanisms.targets.training import commands  # noqa: PLC0415

    inside = Path(commands.__file__).parent / "small-hybrid.toml"
    assert commands._named(inside) == "reference_mechanisms/targets/training/small-hybrid.toml"
    assert commands._named(tmp_path / "my.toml") == (tmp_path / "my.toml").as_posix()
