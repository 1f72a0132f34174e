from __future__ import annotations

from pathlib import Path

import torch

from reference_mechanisms.drafters.training.batches import Shape, batches
from reference_mechanisms.drafters.training.forwards import Batch, following_tokens
from reference_mechanisms.drafters.training.loop import Lesson
from tests.reference_mechanisms.drafters.training.targets import teacher_in, texts_of
from tests.reference_mechanisms.targets.models import CPU


def test_the_rows_that_teach_are_those_that_chose_the_drafts(tmp_path: Path) -> None:
    """Greedy texts: the target's best token at each of them is the one that stands there."""
    teacher = teacher_in(tmp_path)
    shape = Shape(sequences=4, anchors=6, drafts=5, longest=64)
    batch = next(batches(texts_of(teacher, 20), shape, 1, 0, CPU))
    seen = Lesson(teacher, (0, 1), 4.0, soft=True).look(batch)
    assert seen.taught is not None
    best = seen.taught.logits.argmax(-1).view(batch.valid.shape)
    truth = following_tokens(Batch(batch.token_ids, seen.taps.flatten(2), batch.anchors), 5)
    assert batch.valid.sum() > 40
    assert torch.equal(best[batch.valid], truth[batch.valid])
    torch.testing.assert_close(seen.taught.normals, seen.taught.logits.float().logsumexp(-1))
