"""A tiny drafter that has learnt some texts by heart, and what the doctor says once it is broken."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.blocks import Reach
from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.doctor import Text, answered, examine, force, tapped
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.trained import Drafting, Ends
from reference_mechanisms.drafters.training.forwards import Batch, block_rows
from reference_mechanisms.errors import DrafterError
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.reference_mechanisms.drafters.networks import dflash, dflash2, dspark, eagle3
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids, write_model

HIDDEN, PROMPT = 24, 8  # hidden of the target
TAPS = (1, 3)
TEXTS = [Text(tuple(random_ids(56, seed=n)), PROMPT) for n in range(4)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    folder = write_model(tmp_path_factory.mktemp("target"), num_hidden_layers=6)
    return load_llama(folder, torch.float32, CPU)


def ends(target: LlamaTarget) -> Ends:
    return Ends(target.embed, target.logits)


def learnt(target: LlamaTarget, **fields: Any) -> DFlash:
    """A DFlash of three drafts that knows the texts by heart."""
    network = dflash(vocab=VOCAB, hidden=HIDDEN, own=True)
    network = DFlash(dataclasses.replace(network.config, taps=TAPS, **fields))
    torch.manual_seed(0)
    for name, weight in network.named_parameters():
        if weight.ndim > 1:
            weight.data.normal_(0.0, 0.7 if "embed" in name else weight.shape[1] ** -0.5)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.0)
    ids = torch.tensor([text.token_ids for text in TEXTS])
    taps = torch.stack([tapped(target, text, TAPS).clone() for text in TEXTS])
    for _ in range(150):
        optimiser.zero_grad()
        _loss(network, ids, taps).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network.eval().requires_grad_(False)


def _loss(network: DFlash, ids: Tensor, taps: Tensor) -> Tensor:
    assert network.embed_tokens is not None
    assert network.lm_head is not None
    anchors = torch.arange(PROMPT, ids.shape[1] - 4)
    batch = Batch(ids, taps, anchors.expand(len(ids), -1))
    rows = block_rows(network, batch, 3, network.embed_tokens)
    labels = ids[:, anchors[:, None] + torch.arange(1, 4)]
    return F.cross_entropy(network.lm_head(rows).flatten(0, 2), labels.flatten())


@pytest.fixture(scope="module")
def healthy(target: LlamaTarget) -> DFlash:
    return learnt(target)


def named(network: DFlash, target: LlamaTarget, texts: list[Text] = TEXTS) -> set[str]:
    found = examine(Bound(network, network.config.taps, ends(target)), target, texts)
    assert len({one.detector for one in found}) == 7
    return {one.detector for one in found if one.found}


def reconfigured(network: DFlash, **fields: Any) -> DFlash:
    other = copy.deepcopy(network)
    other.config = dataclasses.replace(network.config, **fields)
    return other


def other_head(network: DFlash) -> DFlash:
    other = copy.deepcopy(network)
    assert other.lm_head is not None
    other.lm_head.weight.copy_(other.lm_head.weight.roll(7, dims=0))
    return other


def norms_of_one(network: DFlash) -> DFlash:
    other = copy.deepcopy(network)
    for name, weight in other.named_parameters():
        if "norm" in name:
            weight.copy_(torch.ones_like(weight))
    return other


def test_the_healthy_drafter_is_not_named(healthy: DFlash, target: LlamaTarget) -> None:
    assert named(healthy, target) == set()


BROKEN: dict[str, tuple[Callable[[DFlash], DFlash], str]] = {
    "taps one up": (lambda n: reconfigured(n, taps=(2, 4)), "tap offset"),
    "taps one down": (lambda n: reconfigured(n, taps=(0, 2)), "tap offset"),
    "the anchor row is read": (lambda n: reconfigured(n, anchor_row=True), "row convention"),
    "another head": (other_head, "head not shared"),
    "norms of one": (norms_of_one, "untrained norms"),
    "last layer": (lambda n: reconfigured(n, taps=(1, 5)), "last layer tapped"),
}


@pytest.mark.parametrize(("spoil", "name"), BROKEN.values(), ids=BROKEN)
def test_a_broken_drafter_is_named(
    healthy: DFlash, target: LlamaTarget, spoil: Callable[[DFlash], DFlash], name: str
) -> None:
    assert name in named(spoil(healthy), target)


def test_a_mask_token_that_was_not_trained_leaves_only_the_first_draft(target: LlamaTarget) -> None:
    """Rows that all predict, each seeing those in front: the first is the anchor's, which has no mask."""
    causal = (Reach(causal=True), Reach(causal=True))
    network = learnt(target, anchor_row=True, block=3, reaches=causal)
    assert named(network, target) == set()
    assert named(reconfigured(network, mask_token=40), target) == {"rows behind the first"}


MAKERS = {"dflash": dflash, "dflash2": dflash2, "dspark": dspark, "eagle3": eagle3}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_forced_is_what_a_drafter_would_draft_there(make: Any, target: LlamaTarget) -> None:
    network = make(vocab=VOCAB, hidden=HIDDEN, own=True).float()
    text, taps = TEXTS[0], tapped(target, TEXTS[0], (0, 1))
    found = force(Bound(network, (0, 1), ends(target)), taps, text)
    for row in (0, 5, len(found.anchors) - 1):
        anchor = int(found.anchors[row])
        drafter = Bound(network, (0, 1), ends(target)).new_drafter(Drafting(drafts=network.config.drafts))
        request = Request(name="r", prompt=text.token_ids[:anchor], sampling=Sampling(max_tokens=20))
        drafter.begin(0, request)
        drafter.extend(0, taps[:anchor])
        (proposal,) = drafter.propose([Wanted(0, text.token_ids[anchor : anchor + 1], 9)])
        assert proposal.token_ids[0] == int(found.best[row, 0])
        assert int(found.predicts[row, 0]) == anchor + 1


def test_answers_end_where_the_target_ends_them(target: LlamaTarget) -> None:
    prompt = random_ids(5)
    (whole,) = answered(target, [prompt], (), 20)
    assert (len(whole.token_ids), whole.prompt) == (25, 5)
    stop = whole.token_ids[9]
    (cut,) = answered(target, [prompt], (stop,), 20)
    first = whole.token_ids.index(stop, 5)
    assert cut.token_ids == whole.token_ids[: first + 1]


def test_answers_that_are_too_short_are_told(healthy: DFlash, target: LlamaTarget) -> None:
    with pytest.raises(DrafterError, match="no answer has 5 tokens"):
        named(healthy, target, [Text(tuple(random_ids(12)), 8)])
