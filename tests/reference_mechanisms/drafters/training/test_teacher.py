from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.training.teacher import TextCache, load_teacher
from reference_mechanisms.drafters.training.writing import Limits, Task, write
from tests.reference_mechanisms.targets.models import CPU, random_ids, stock_model, write_model

FAMILIES = ["llama", "qwen3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_taps_are_those_of_stock(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, family)
    teacher, stock = load_teacher(folder, torch.float64, CPU), stock_model(folder)
    ids = torch.tensor([random_ids(9, seed) for seed in range(3)])
    with torch.no_grad():
        told = stock(ids, output_hidden_states=True)
    seen = teacher.forward(ids, (-1, 1))
    torch.testing.assert_close(
        teacher.logits(seen.hidden), told.logits, rtol=0, atol=1e-4
    )  # stock rounds its norms to float32
    tapped = torch.cat((told.hidden_states[0], told.hidden_states[2]), dim=-1)
    torch.testing.assert_close(seen.taps, tapped, rtol=0, atol=1e-4)


def test_sequences_of_a_cache_do_not_see_the_padding_in_front_of_them(tmp_path: Path) -> None:
    teacher = load_teacher(write_model(tmp_path), torch.float64, CPU)
    ids = random_ids(7)
    alone = teacher.forward(torch.tensor([ids])).hidden[0, -1]
    first = torch.tensor([3, 0])
    cache = TextCache(teacher, first, 10)
    padded = torch.tensor([[5, 6, 7, *ids], random_ids(10, 4)])
    teacher.forward(padded[:, :6], cache=cache)
    teacher.forward(padded[:, 6:9], cache=cache)
    found = teacher.forward(padded[:, 9:], cache=cache).hidden[0, -1]
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("columns", [25, 400], ids=["a few at once", "all at once"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_are_those_of_stock(family: str, columns: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path, family)
    teacher, stock = load_teacher(folder, torch.float64, CPU), stock_model(folder)
    asked = [tuple(random_ids(2 + seed, seed)) for seed in range(6)]
    limits = Limits(new_tokens=40, stop_ids=(7, 1), columns=columns)
    written = write(teacher, [Task(prompt, 0.0) for prompt in asked], limits, 0)
    for prompt, text in zip(asked, written, strict=True):
        whole = list(prompt)
        for _ in range(40):
            with torch.no_grad():
                whole.append(int(stock(torch.tensor([whole])).logits[0, -1].argmax()))
            if whole[-1] in (7, 1):
                break
        assert list(text) == whole[len(prompt) :]
    assert any(len(text) < 40 for text in written)  # some came to a stop


def test_warm_texts_follow_the_distribution(tmp_path: Path) -> None:
    teacher = load_teacher(write_model(tmp_path, initializer_range=0.1), torch.float64, CPU)
    prompt = tuple(random_ids(4))
    limits = Limits(new_tokens=1, stop_ids=(), columns=100_000)
    drawn = torch.tensor([text[0] for text in write(teacher, [Task(prompt, 0.8)] * 6000, limits, 3)])
    logits = teacher.logits(teacher.forward(torch.tensor([prompt])).hidden[0, -1])
    expected = (logits / 0.8).softmax(-1)
    found = torch.bincount(drawn, minlength=len(expected)) / len(drawn)
    assert 0.5 * (found - expected).abs().sum() < 0.06  # about 0.03 for an honest sampler, 1.0 for greedy


def test_improbable_tokens_are_dropped_where_asked(tmp_path: Path) -> None:
    teacher = load_teacher(write_model(tmp_path), torch.float64, CPU)
    prompt = tuple(random_ids(4))
    probabilities = teacher.logits(teacher.forward(torch.tensor([prompt])).hidden[0, -1]).softmax(-1)
    limits = Limits(new_tokens=1, stop_ids=(), columns=100_000, min_p=0.3)
    drawn = {text[0] for text in write(teacher, [Task(prompt, 1.5)] * 500, limits, 3)}
    warm = probabilities ** (1 / 1.5)
    assert drawn <= set((warm >= 0.3 * warm.max()).nonzero().flatten().tolist())
    assert len(drawn) > 1 or int((warm >= 0.3 * warm.max()).sum()) == 1
