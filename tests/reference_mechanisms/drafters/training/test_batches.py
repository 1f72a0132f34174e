from __future__ import annotations

import itertools

import numpy as np
import torch

from reference_mechanisms.drafters.training.batches import POOL, Drawn, Shape, batches
from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather

SHAPE = Shape(sequences=3, anchors=4, drafts=3, longest=30)
CPU = torch.device("cpu")


def corpus(count: int = 50) -> Corpus:
    """Prompts are all 1, texts count up from 100 times their number."""
    texts = [tuple(range(100 * n, 100 * n + 2 + n % 40)) for n in range(1, count + 1)]
    made = [Example((1,) * (2 + n % 3), text, "own", 0.0) for n, text in enumerate(texts)]
    return gather([*made, Example((1, 1), (5,), "too short", 0.0)])


def same(one: Drawn, other: Drawn) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("token_ids", "anchors", "valid")
    )


def test_a_run_that_goes_on_sees_the_same_batches() -> None:
    steps = 2 * POOL + 5
    whole = list(itertools.islice(batches(corpus(), SHAPE, 7, 0, CPU), steps))
    for first in (1, POOL - 1, POOL, POOL + 9):
        rest = list(itertools.islice(batches(corpus(), SHAPE, 7, first, CPU), steps - first))
        assert all(same(one, other) for one, other in zip(rest, whole[first:], strict=True))


def test_anchors_stand_in_the_text_and_only_its_tokens_are_valid() -> None:
    for batch in itertools.islice(batches(corpus(), SHAPE, 7, 0, CPU), 100):
        for ids, anchors, valid in zip(batch.token_ids, batch.anchors, batch.valid, strict=True):
            for anchor, row in zip(anchors.tolist(), valid.tolist(), strict=True):
                if not row[0]:
                    assert not any(row)
                    continue
                start = int(ids[anchor])
                assert start != 1
                told = [int(token) for token, has in zip(ids[anchor + 1 :], row, strict=False) if has]
                assert told == list(range(start + 1, start + 1 + len(told)))
                end = anchor + 1 + len(told)
                cut = end >= SHAPE.longest or int(ids[end]) == 0
                assert all(row) or cut


def test_every_example_is_seen_once_before_any_comes_again() -> None:
    made = corpus(3 * POOL)
    seen = []
    for batch in itertools.islice(batches(made, SHAPE, 1, 0, CPU), POOL):
        seen += [int(ids[ids > 1].min()) // 100 for ids in batch.token_ids]
    assert sorted(seen) == list(range(1, 3 * POOL + 1))


def test_each_round_and_seed_has_its_own_order() -> None:
    def heads(seed: int, first: int) -> list[int]:
        drawn = itertools.islice(batches(corpus(3 * POOL), SHAPE, seed, first, CPU), POOL)
        return [int(batch.token_ids.sum()) for batch in drawn]

    assert heads(1, 0) != heads(2, 0)
    assert heads(1, 0) != heads(1, POOL)
    assert np.sum(heads(1, 0)) == np.sum(heads(1, POOL))  # the same examples
