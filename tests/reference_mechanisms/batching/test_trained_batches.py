"""Drafters with weights under the plans that share what they drafted."""

from __future__ import annotations

import random

import pytest
import torch

from reference_mechanisms.batching.batcher import Batcher, Drafts
from reference_mechanisms.batching.rationing import Ration
from reference_mechanisms.batching.running import PackedRunner
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.drafters.binding import Bound, bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.rules import Rules
from reference_mechanisms.engine.turns import Turns
from reference_mechanisms.request import Event, Request, Sampling
from reference_mechanisms.targets.llama import LlamaTarget, load_llama
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.drafters.networks import FULL, dflash, dspark
from tests.reference_mechanisms.targets.models import VOCAB, write_model

CAPACITY, DRAFTS, NODES = 64, 4, 8


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaTarget:
    return load_llama(
        write_model(tmp_path_factory.mktemp("batches") / "target"), torch.float32, torch.device("cpu")
    )


def requests() -> list[Request]:
    rng = random.Random(6)  # noqa: S311 - test data
    return [
        Request(
            name=f"r{n}",
            prompt=tuple(rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 14))),
            sampling=Sampling(max_tokens=12, ignore_eos=True, temperature=0.7 * (n % 2), seed=n),
            capture_logits=True,
        )
        for n in range(5)
    ]


def text(_ids: object) -> str:
    return ""


@pytest.mark.parametrize("way", ["confidences", "trees", "no confidences", "lengths by load"])
def test_shared_drafts_leave_the_output_alone(target: LlamaTarget, way: str) -> None:
    ration = None if way in {"no confidences", "lengths by load"} else Ration()
    tree = way == "trees"
    network = dspark(FULL, DRAFTS, VOCAB, 24, own=True) if ration else dflash(FULL, 5, VOCAB, 24, own=True)
    bound: Bound = bind(network.float(), target, "drafter")
    drafting = Drafting(
        drafts=DRAFTS,
        tree=NODES if tree else None,
        nodes=ration.nodes if ration and tree else None,
        lengths=ration.lengths if ration and not tree else None,
    )
    settings = BatchSettings(
        slots=3,
        budget=not tree and way != "lengths by load",
        tree_budget=tree,
        adaptive=way == "lengths by load",
        prefill_rows=4,
    )
    most = NODES if tree else DRAFTS
    engine = Batcher(
        PackedRunner(target, 3, CAPACITY + most + 1),
        Turns((), text, CAPACITY, VOCAB, Rules()),
        Drafts(bound.new_drafter(drafting), most, ration, tree),
        settings,
        staircase(4, most, row=0.02),
    )
    events: dict[str, list[Event]] = {one.name: [] for one in requests()}
    for one in requests():
        engine.submit(one)
    budgets = []
    while engine.busy:
        for name, event in engine.step():
            assert isinstance(event, Event)
            events[name].append(event)
        if engine.planned is not None and engine.planned.budget is not None:
            budgets.append(engine.planned.budget)
    decoder = Decoder(target, (), text, CAPACITY)
    for one in requests():
        alone = list(decoder.stream([one], NoDrafter()))
        mine = events[one.name]
        assert [t for e in mine for t in e.token_ids] == [t for e in alone for t in e.token_ids]
        assert mine[-1].logits_sha256 == alone[-1].logits_sha256
    if way != "lengths by load":
        assert max(budgets) > 0
        drafted = sum(event.drafted for mine in events.values() for event in mine)
        assert 0 < drafted <= sum(budgets)
