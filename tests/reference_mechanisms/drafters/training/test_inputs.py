from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.loading import build
from reference_mechanisms.drafters.training.batches import Shape, batches
from reference_mechanisms.drafters.training.beginning import begin
from reference_mechanisms.drafters.training.inputs import inputs_of
from reference_mechanisms.drafters.training.models import config_of
from reference_mechanisms.drafters.training.plan import DrafterSpec
from tests.reference_mechanisms.drafters.training.targets import teacher_in, texts_of
from tests.reference_mechanisms.targets.models import CPU

LOOKED_UP = {"candidate_selector.predecessor_codebook", "markov_head.markov_w1.weight"}


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "eagle3"])
def test_every_matrix_that_multiplies_is_met(kind: str, tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path)
    spec = DrafterSpec(name=kind, kind=kind, layers=2, taps=(0, 1), inner=24, rank=6, group=8)  # type: ignore[arg-type]
    model = build(config_of(spec, teacher.config, 3, 5), "cpu")
    begin(model, teacher, (), 1)
    shape = Shape(sequences=2, anchors=4, drafts=3, longest=64)
    drawn = batches(texts_of(teacher, 8), shape, 1, 0, CPU)
    one, two = next(drawn), next(drawn)
    sums = inputs_of(model, teacher, [one])
    matrices = {name: weight for name, weight in model.named_parameters() if weight.ndim == 2}
    confidence = {name for name in matrices if "confidence" in name}
    assert set(matrices) - LOOKED_UP - confidence == set(sums) - confidence
    for name, products in sums.items():
        assert products.shape == (matrices[name].shape[1],) * 2
        torch.testing.assert_close(products, products.T)
    both, other = inputs_of(model, teacher, [one, two]), inputs_of(model, teacher, [two])
    for name, products in both.items():
        torch.testing.assert_close(products, sums[name] + other[name])


def test_the_rows_of_the_join_are_the_tapped_hidden_states(tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path)
    spec = DrafterSpec(name="a", kind="dflash", layers=1, taps=(0, 1), inner=24)
    model = build(config_of(spec, teacher.config, 3, 5), "cpu")
    one = next(batches(texts_of(teacher, 8), Shape(sequences=2, anchors=4, drafts=3, longest=64), 1, 0, CPU))
    rows: list[Tensor] = []
    for text in one.token_ids:
        written = text[: int((text != 0).nonzero().max()) + 1]  # no padding
        rows.append(teacher.forward(written[None], (0, 1)).taps[0])
    taps = torch.cat(rows)
    found = inputs_of(model, teacher, [one])["fc.weight"].float()
    torch.testing.assert_close(found, taps.T @ taps, rtol=1e-4, atol=1e-4)
