"""The hybrid target that comes with the package: pinned, small, and transformers' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import reference_mechanisms
from harness.models import resolve_model
from harness.plan import load_deployment
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.targets.hybrid import load_hybrid

PACKAGE = Path(reference_mechanisms.__file__).parent
FOLDER = PACKAGE / "targets" / "shipped" / "small-hybrid"
ASKED = "A farmer has 12 sheep and buys 7 more. How many are there?"
PROMPT = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", ["small-hybrid-cuda", "small-hybrid-cpu-f32"])
def test_its_deployments_pin_the_weights_that_lie_there(name: str) -> None:
    target = load_deployment(name).target
    assert target.sha256 is not None
    assert resolve_model(target).sha256 == target.sha256
    assert json.loads((FOLDER / "training.json").read_text())["weights_sha256"] == target.sha256
    assert target.sha256 in (FOLDER / "README.md").read_text()


def test_target_and_drafter_stay_below_six_megabytes() -> None:
    folders = (FOLDER, PACKAGE / "drafters" / "shipped" / "small-hybrid")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert 2e6 < sum(file.stat().st_size for file in files) < 6e6


def test_it_is_the_model_that_transformers_loads_and_it_has_learnt() -> None:
    """A text of its own, token by token, is nearly as likely to both, and far from a guess."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids = tokenizer.encode(PROMPT).ids
    target = load_hybrid(FOLDER, torch.float32, torch.device("cpu"))
    stock = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.no_grad():
        answer = stock.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0].tolist()
        theirs = stock(torch.tensor([answer])).logits[0]
    rows = Rows(answer, range(len(answer)), [Segment(slot=0, start=0, rows=len(answer))])
    mine = target.logits(target.forward(rows, target.new_cache(1, 256)).hidden)
    assert torch.allclose(mine, theirs, rtol=0, atol=2e-4)
    chosen = mine[len(ids) - 1 : -1].log_softmax(-1)
    assert chosen.argmax(-1).tolist() == answer[len(ids) :]
    assert chosen.max(-1).values.mean() > -1.5  # a guess among 4,096 is at -8.3
    assert "12" in tokenizer.decode(answer[len(ids) :]) or "sheep" in tokenizer.decode(answer[len(ids) :])
