"""Which sequences and anchors each step sees: a function of seed and step alone, so that runs resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference_mechanisms.drafters.training.corpus import Corpus

POOL = 64  # batches that are drawn together and sorted by length
ROUND = 128  # positions of a padded sequence are a multiple of this


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One batch on its device."""

    token_ids: Tensor  # [sequences, positions]
    anchors: Tensor  # [sequences, anchors], sorted
    valid: Tensor  # bool [sequences, anchors, drafts]: a token of the text stands there


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of every batch."""

    sequences: int
    anchors: int  # of each sequence
    drafts: int
    longest: int  # longer examples are cut there


def batches(corpus: Corpus, shape: Shape, seed: int, first: int, device: torch.device) -> Iterator[Drawn]:
    """Batches without end, from step `first` on.

    Examples are drawn without replacement in each pool, and pools go through the corpus in an order that
    is drawn anew whenever it ends.
    """
    starts = corpus.starts()
    usable = np.flatnonzero(corpus.lengths - corpus.prompt_lengths > 1)
    per_pool = POOL * shape.sequences
    pool = first // POOL
    while True:
        chosen = _pool(usable, per_pool, seed, pool)
        order = chosen[np.argsort(corpus.lengths[chosen], kind="stable")]
        groups = np.random.default_rng((seed, pool, 1)).permutation(POOL)
        for step in range(first if pool == first // POOL else pool * POOL, (pool + 1) * POOL):
            group = groups[step - pool * POOL]
            rows = order[group * shape.sequences : (group + 1) * shape.sequences]
            yield _draw(corpus, starts, rows, shape, np.random.default_rng((seed, step, 2)), device)
        pool += 1


def _pool(usable: np.ndarray, size: int, seed: int, pool: int) -> np.ndarray:
    """The examples of a pool, out of endless shuffled rounds over all of them."""
    wanted = range(pool * size, (pool + 1) * size)
    found = []
    for turn in range(wanted.start // len(usable), (wanted.stop - 1) // len(usable) + 1):
        shuffled = np.random.default_rng((seed, turn, 0)).permutation(usable)
        low = max(wanted.start - turn * len(usable), 0)
        found.append(shuffled[low : wanted.stop - turn * len(usable)])
    return np.concatenate(found)


def _draw(
    corpus: Corpus,
    starts: np.ndarray,
    rows: np.ndarray,
    shape: Shape,
    random: np.random.Generator,
    device: torch.device,
) -> Drawn:
    lengths = np.minimum(corpus.lengths[rows], shape.longest)
    width = -(-int(lengths.max()) // ROUND) * ROUND
    token_ids = np.zeros((len(rows), width), dtype=np.int64)
    anchors = np.ones((len(rows), shape.anchors), dtype=np.int64)
    has = np.zeros((len(rows), shape.anchors), dtype=np.bool_)
    for number, row in enumerate(rows):
        length = int(lengths[number])
        token_ids[number, :length] = corpus.token_ids[starts[row] : starts[row] + length]
        possible = np.arange(min(int(corpus.prompt_lengths[row]), length), length - 1)
        picked = np.sort(random.choice(possible, min(shape.anchors, len(possible)), replace=False))
        anchors[number, : len(picked)], has[number, : len(picked)] = picked, True
    last = anchors[..., None] + 1 + np.arange(shape.drafts)
    valid = has[..., None] & (last < lengths[:, None, None])
    moved = [torch.from_numpy(array) for array in (token_ids, anchors, valid)]
    if device.type == "cuda":
        moved = [array.pin_memory().to(device, non_blocking=True) for array in moved]
    return Drawn(token_ids=moved[0], anchors=moved[1], valid=moved[2])
