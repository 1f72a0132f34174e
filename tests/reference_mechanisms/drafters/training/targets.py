"""A small random target for training tests, and texts it wrote."""

from __future__ import annotations

from pathlib import Path

import torch

from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather
from reference_mechanisms.drafters.training.teacher import Teacher, load_teacher
from reference_mechanisms.drafters.training.writing import Limits, Task, write
from tests.reference_mechanisms.targets.models import CPU, random_ids, write_model

LIMITS = Limits(new_tokens=16, stop_ids=(1,), columns=400)


def teacher_in(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32) -> Teacher:
    return load_teacher(write_model(folder, family), dtype, CPU)


def prompts(count: int) -> list[tuple[int, ...]]:
    return [tuple(random_ids(3 + number % 5, seed=number)) for number in range(count)]


def texts_of(teacher: Teacher, count: int) -> Corpus:
    asked = prompts(count)
    written = write(teacher, [Task(prompt, 0.0) for prompt in asked], LIMITS, 0)
    return gather([Example(p, text, "own", 0.0) for p, text in zip(asked, written, strict=True)])
