from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from reference_mechanisms.drafters.card import read_card, render_card
from reference_mechanisms.drafters.shipped import TrainedFor
from reference_mechanisms.drafters.training.commands import EXAMPLES, FACTS, HELD_OUT, Outside, register
from reference_mechanisms.drafters.training.corpus import save
from reference_mechanisms.drafters.training.running import TrainingTarget
from reference_mechanisms.errors import DrafterError
from tests.reference_mechanisms.drafters.training.targets import teacher_in, texts_of

TOLD = {"examples": 8, "left_out": 3, "repetitions": 4, "words": 13, "held_out": 2, "disjoint_from": ["odd"]}
PLAN = """
name = "tiny"
licence = "MIT"
seed = 3
drafts = 3
mask_token = 5
[text]
[schedule]
steps = 4
sequences = 2
anchors = 4
[[drafter]]
name = "mine"
kind = "dflash"
layers = 1
taps = [0]
inner = 8
"""


def run(target: TrainingTarget, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    actions = parser.add_subparsers(required=True)

    def counts(text: Sequence[int]) -> bool:
        return len(text) > 1

    outside = Outside(lambda: "0123abc", lambda: "2026-01-02", lambda *told: f"<svg>{told}</svg>")
    register(actions, lambda command: command, lambda _name: target, lambda _folder: {}, counts, outside)
    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


@pytest.fixture
def target(tmp_path: Path) -> TrainingTarget:
    teacher = teacher_in(tmp_path / "target")
    (tmp_path / "data").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "data" / FACTS).write_text(json.dumps(TOLD))
    save(texts_of(teacher, 8), tmp_path / "data" / EXAMPLES)
    save(texts_of(teacher, 2), tmp_path / "data" / HELD_OUT)
    return TrainingTarget(tmp_path / "target", TrainedFor("tiny", "ab" * 32), (1,))


def test_a_run_that_is_cut_short_says_so_and_goes_on(
    target: TrainingTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--deployment", "any", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    train = ["train", str(tmp_path / "plan.toml"), *where]
    assert run(target, *train, "--minutes", "0") == 1
    assert "go on with --resume" in capsys.readouterr().out
    assert not (tmp_path / "out" / "mine").exists()
    assert run(target, *train, "--resume") == 0
    assert (tmp_path / "out" / "mine" / "model.safetensors").is_file()
    save(texts_of(teacher_in(tmp_path / "target"), 9), tmp_path / "data" / EXAMPLES)
    with pytest.raises(DrafterError, match="of another plan"):  # other text is another run
        run(target, *train, "--resume")


def test_training_ends_with_a_card(target: TrainingTarget, tmp_path: Path) -> None:
    where = ["--deployment", "any", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert run(target, "train", str(tmp_path / "plan.toml"), *where) == 0
    folder = tmp_path / "out" / "mine"
    card = read_card(folder)  # the picture is there too
    assert (folder / "README.md").read_text() == render_card(card)
    assert (card.drafter, card.target, card.licence) == ("dflash", "tiny", "MIT")
    assert (card.training.commit, card.training.date) == ("0123abc", "2026-01-02")
    assert str(tmp_path / "data") not in card.training.command
    assert (card.data.left_out, card.data.overlap_words, card.data.disjoint_from) == (3, 13, ("odd",))
    stored = (folder / "model.safetensors").read_bytes()
    assert card.stored.sha256 == hashlib.sha256(stored).hexdigest()
    assert card.stored.bytes == len(stored)
    assert card.measured == ()


@pytest.mark.parametrize("content", [None, "{", '{"examples": 1}'], ids=["none", "no JSON", "a field short"])
def test_text_without_its_facts_is_refused(
    content: str | None, target: TrainingTarget, tmp_path: Path
) -> None:
    where = ["--deployment", "any", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    (tmp_path / "data" / FACTS).unlink()
    if content is not None:
        (tmp_path / "data" / FACTS).write_text(content)
    with pytest.raises(DrafterError, match=r"data\.json.*`drafters data`"):
        run(target, "train", str(tmp_path / "plan.toml"), *where)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ('{"source": "a", "prompt": "b"}\n{"source": ', "line 2 is not JSON"),
        ('\n{"source": "a"}', "line 2: needs the text fields"),
        ('["a", "b"]', "line 1: needs the text fields"),
        ('{"source": 1, "prompt": "b"}', "line 1: needs the text fields"),
    ],
    ids=["no file", "no JSON", "no prompt", "no object", "no text"],
)
def test_broken_prompt_files_are_refused_by_line(
    content: str | None, message: str, target: TrainingTarget, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    if content is not None:
        prompts.write_text(content)
    where = ["--deployment", "any", "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    with pytest.raises(DrafterError, match=message):
        run(target, "data", str(tmp_path / "plan.toml"), *where)
    assert not (tmp_path / "out").exists()
