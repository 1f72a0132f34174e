"""Lets the target write: many prompts at once, greedily or sampled, up to its stop tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.training.teacher import Teacher, TextCache

PREFILL_COLUMNS = 128  # at once
THIN_EVERY = 32  # columns between two looks at which sequences have ended
PADDING = 0  # token id in front of shorter prompts; never seen


class Task(NamedTuple):
    """One text to write."""

    prompt: tuple[int, ...]
    temperature: float  # 0: greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far."""

    new_tokens: int
    stop_ids: tuple[int, ...]
    columns: int  # of prompts and texts at once, padding included: bounds memory
    min_p: float = 0.0  # drops tokens less probable than this share of the best one's probability


def write(
    teacher: Teacher,
    tasks: Sequence[Task],
    limits: Limits,
    seed: int,
    tell: Callable[[int], None] = lambda _done: None,
) -> list[tuple[int, ...]]:
    """The text behind each prompt, its stop token included where one came.

    Args:
        teacher: writes.
        tasks: in any order; those of like length run together.
        limits: of all.
        seed: of the draws; the result also depends on `limits.columns` and the device.
        tell: told how many tasks have ended since it was last told.
    """
    random = torch.Generator(teacher.device).manual_seed(seed)
    written: dict[int, tuple[int, ...]] = {}
    for chosen in _batches(tasks, limits):
        texts = _together(teacher, [tasks[n] for n in chosen], limits, random)
        written |= dict(zip(chosen, texts, strict=True))
        tell(len(chosen))
    return [written[number] for number in range(len(tasks))]


def _batches(tasks: Sequence[Task], limits: Limits) -> Iterator[list[int]]:
    order = sorted(range(len(tasks)), key=lambda number: len(tasks[number].prompt))
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order):
            longest = len(tasks[order[end]].prompt) + limits.new_tokens
            if longest * (end + 1 - begin) > limits.columns:
                break
            end += 1
        yield order[begin:end]
        begin = end


@torch.no_grad()
def _together(
    teacher: Teacher, tasks: Sequence[Task], limits: Limits, random: torch.Generator
) -> list[tuple[int, ...]]:
    device = teacher.device
    longest = max(len(task.prompt) for task in tasks)
    padded = [[PADDING] * (longest - len(task.prompt)) + list(task.prompt) for task in tasks]
    token_ids = torch.tensor(padded, device=device)
    first = torch.tensor([longest - len(task.prompt) for task in tasks], device=device)
    temperatures = torch.tensor([task.temperature for task in tasks], device=device)
    stops = torch.tensor(limits.stop_ids, device=device)
    cache = TextCache(teacher, first, longest + limits.new_tokens)
    texts = torch.full((len(tasks), limits.new_tokens), -1, dtype=torch.int64, device=device)
    alive = torch.arange(len(tasks), device=device)
    ended = torch.zeros(len(tasks), dtype=torch.bool, device=device)
    for begin in range(0, longest - 1, PREFILL_COLUMNS):
        teacher.forward(token_ids[:, begin : min(begin + PREFILL_COLUMNS, longest - 1)], cache=cache)
    rows = token_ids[:, -1:]
    for column in range(limits.new_tokens):
        hidden = teacher.forward(rows, cache=cache).hidden[:, -1]
        chosen = _choose(teacher.logits(hidden), temperatures, limits.min_p, random)
        texts[alive, column] = torch.where(ended, -1, chosen)
        ended = ended | torch.isin(chosen, stops)
        if (column + 1) % THIN_EVERY == 0:
            left = (~ended).nonzero().squeeze(1)
            if not len(left):
                break
            alive, ended, temperatures, chosen = alive[left], ended[left], temperatures[left], chosen[left]
            cache.keep(left)
        rows = chosen[:, None]
    return [tuple(token for token in text if token >= 0) for text in texts.tolist()]


def _choose(logits: Tensor, temperatures: Tensor, min_p: float, random: torch.Generator) -> Tensor:
    """Greedy at temperature 0, else the largest of the logits with Gumbel noise: one pass, no sort."""
    warm = temperatures[:, None] > 0
    noise = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    noise.exponential_(generator=random).log_().neg_()
    scaled = logits / torch.where(warm, temperatures[:, None], 1.0)
    if min_p > 0:
        floor = scaled.amax(-1, keepdim=True) + math.log(min_p)
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    return torch.where(warm, scaled + noise, scaled).argmax(-1)
