from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.loading import Network, build
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.trained import BlockDrafter, ChainDrafter, Drafting, Ends, TrainedDrafter
from reference_mechanisms.drafters.training.corpus import Example, gather
from reference_mechanisms.drafters.training.measuring import Acceptance, Walked, summed, walk
from reference_mechanisms.drafters.training.models import config_of
from reference_mechanisms.drafters.training.plan import DrafterSpec
from reference_mechanisms.drafters.training.teacher import Teacher
from reference_mechanisms.request import Request, Sampling
from tests.reference_mechanisms.drafters.training.targets import teacher_in

DRAFTS = 3
KINDS = ("dflash", "dflash2", "dspark", "eagle3")


def network_of(kind: str, teacher: Teacher) -> Network:
    spec = DrafterSpec(name=kind, kind=kind, layers=2, taps=(0, 1), inner=20, rank=4, candidates=5, group=8)  # type: ignore[arg-type]
    network = build(config_of(spec, teacher.config, DRAFTS, mask_token=3), "cpu").double()
    made = torch.Generator().manual_seed(1)
    for weight in network.parameters():
        noise = torch.randn(weight.shape, generator=made, dtype=weight.dtype)
        weight.data = 1 + 0.3 * noise if weight.ndim == 1 else 0.4 * noise
    return network.eval().requires_grad_(False)


def drafter_of(network: Network, teacher: Teacher) -> TrainedDrafter:
    ends = Ends(lambda ids: teacher.embedding[ids], teacher.logits)
    drafting = Drafting(drafts=DRAFTS)
    if isinstance(network, Eagle3):
        return ChainDrafter(network, (0, 1), ends, drafting)
    return BlockDrafter(network, ends, drafting)


def drafted_text(network: Network, teacher: Teacher, seed: int) -> tuple[Example, list[int]]:
    """A text that follows a real drafter for some tokens each step, and how many of each step's drafts."""
    draw = random.Random(seed)  # noqa: S311 - test data
    prompt = tuple(draw.randrange(60) for _ in range(2 + seed))
    request = Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=40))
    drafter = drafter_of(network, teacher)
    drafter.begin(0, request)
    text, known, counts = [draw.randrange(60)], 0, []
    while len(text) < 25:
        whole = torch.tensor([[*prompt, *text]])
        taps = teacher.forward(whole, (0, 1)).taps[0]
        drafter.extend(0, taps[known : whole.shape[1] - 1])
        known = whole.shape[1] - 1
        drafts = drafter.propose([Wanted(0, tuple(text), DRAFTS)])[0].token_ids
        kept = draw.randint(0, DRAFTS)
        other = draw.randrange(60)
        while kept < DRAFTS and other == drafts[kept]:
            other = draw.randrange(60)
        text += [*drafts[:kept], other]
        counts.append(kept)
    return Example(prompt, tuple(text), "own", 0.0), counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_counts_what_real_drafting_accepts(kind: str, tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path, dtype=torch.float64)
    network = network_of(kind, teacher)
    made = [drafted_text(network, teacher, seed) for seed in range(4)]
    walked = walk(network, teacher, gather([example for example, _ in made]), DRAFTS)
    assert [list(one.accepted) for one in walked] == [counts for _, counts in made]
    assert [one.text for one in walked] == [example.text for example, _ in made]


def test_a_text_of_one_token_has_no_step(tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path, dtype=torch.float64)
    found = walk(network_of("dflash", teacher), teacher, gather([Example((1, 2), (3,), "own", 0.0)]), DRAFTS)
    assert found == [Walked("own", (3,), ())]


def test_acceptance_is_summed_over_steps() -> None:
    walked = [Walked("a", (), (3, 0, 1)), Walked("b", (), ()), Walked("a", (), (2,))]
    found = summed(walked, DRAFTS)
    assert found == Acceptance(4, 6, (3, 2, 1))
    assert found.length == 2.5
    assert found.survival == (0.75, 0.5, 0.25)
    assert math.isnan(summed([], DRAFTS).length)
