"""Drafters recorded for a batch draft what the plain ones draft, whatever is accepted, comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.opening import Runners
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters import fusing, slot_drafting
from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.protocol import ContextDrafter, Proposal, Wanted
from reference_mechanisms.drafters.scheduling import at_least
from reference_mechanisms.drafters.slot_drafting import SlotDrafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.reference_mechanisms.batching.slot_cases import (
    CAPACITY,
    GREEDY,
    SLOTS,
    Spoiling,
    decoded_alone,
    hold_same,
    requests,
    run,
    text_of,
    tokens,
)
from tests.reference_mechanisms.drafters.networks import FULL, dflash, dspark
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.targets.models import CPU, VOCAB, write_model

DRAFTS = 4
LONG = (Sampling(max_tokens=50), Sampling(max_tokens=36), *GREEDY)
TODO = requests(8, LONG)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    return load_llama(write_model(tmp_path_factory.mktemp("slots") / "target"), torch.float64, CPU)


class Beside:
    """Asks two drafters, holds that they say the same, and hands on spoilt right drafts instead."""

    def __init__(self, one: ContextDrafter, other: ContextDrafter, spoiling: Spoiling) -> None:
        self.both, self.spoiling, self.taps = (one, other), spoiling, one.taps
        self.lengths: set[int] = set()
        self.compared = 0

    def begin(self, slot: int, request: Request) -> None:
        for drafter in (*self.both, self.spoiling):
            drafter.begin(slot, request)

    def extend(self, slot: int, taps: Tensor) -> None:
        for drafter in self.both:
            drafter.extend(slot, taps)

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        made = [drafter.propose(wanted) for drafter in self.both]
        if max(one.limit for one in wanted) >= DRAFTS:  # else its blocks are shorter than the plain ones
            assert made[0] == made[1]
            self.compared += len(wanted)
        self.lengths |= {len(one.token_ids) for one in made[0]}
        return self.spoiling.propose(wanted)


def beside(target: LlamaTarget, bound: Bound, drafting: Drafting) -> Beside:
    alone = decoded_alone(target, TODO)
    recorded = Runners().drafters(target, SLOTS, CAPACITY)(bound, drafting)
    assert isinstance(recorded, SlotDrafter)
    spoiling = Spoiling({name: tokens(events) for name, events in alone.items()}, seed=1)
    drafter = Beside(bound.new_drafter(drafting), recorded, spoiling)
    engine = Batcher(
        PackedRunner(target, SLOTS, CAPACITY + 8),
        Turns((), text_of, CAPACITY, VOCAB, Rules()),
        Drafts(drafter, 6),
        BatchSettings(slots=SLOTS, prefill_rows=70),
    )
    plain = [Request(name=one.name, prompt=one.prompt, sampling=one.sampling) for one in TODO]
    found = run(engine, plain, seed=2, leaving={"r4": 2})
    assert hold_same(plain, found, alone) >= 7
    assert len({event.accepted for events in found.values() for event in events}) > 3
    assert drafter.compared > 30
    return drafter


@pytest.mark.parametrize("name", NETWORKS)
def test_drafts_are_the_plain_ones(target: LlamaTarget, name: str) -> None:
    drafter = beside(target, bind(NETWORKS[name](), target, "drafter"), Drafting(drafts=DRAFTS))
    assert drafter.lengths >= {0, DRAFTS}


def test_confidences_are_the_plain_ones(target: LlamaTarget) -> None:
    bound = bind(dspark(FULL, DRAFTS, VOCAB, 24, own=True), target, "drafter")
    drafter = beside(target, bound, Drafting(drafts=DRAFTS, lengths=at_least(0.5)))
    assert len(drafter.lengths) > 2


def test_the_fused_program_drafts_the_same(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_drafting, "fusable", lambda network: type(network) is DFlash)
    drafter = beside(
        target, bind(dflash(FULL, 5, VOCAB, 24, own=True), target, "drafter"), Drafting(drafts=DRAFTS)
    )
    assert drafter.lengths >= {0, DRAFTS}
    assert not fusing.fusable(dflash(FULL, 5, VOCAB, 24))


def test_what_is_drawn_or_a_tree_is_not_recorded(target: LlamaTarget) -> None:
    bound = bind(dflash(FULL, 5, VOCAB, 24, own=True), target, "drafter")
    make = Runners().drafters(target, SLOTS, CAPACITY)
    for drafting in (Drafting(drafts=2, sampled=True), Drafting(drafts=2, tree=4)):
        assert not isinstance(make(bound, drafting), SlotDrafter)
