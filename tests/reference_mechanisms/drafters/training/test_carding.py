"""The card that training writes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from reference_mechanisms.drafters.card import Card
from reference_mechanisms.drafters.shipped import TrainedFor
from reference_mechanisms.drafters.storing import Rounding
from reference_mechanisms.drafters.training.carding import DataFacts, Ended, Story, card_of, summary
from reference_mechanisms.drafters.training.corpus import Corpus, Example, gather
from reference_mechanisms.drafters.training.loop import Point
from reference_mechanisms.drafters.training.plan import DrafterSpec, ScheduleSpec, TextSpec, TrainingPlan
from reference_mechanisms.drafters.training.states import Reached, load_state, save_state

TARGET = TrainedFor("tiny", "ab" * 32)
CORPUS = gather(
    [
        Example((1, 2), (3, 4, 5), "sums (MIT)", 0.0),
        Example((1,), (3, 4), "sums (MIT)", 0.7),
        Example((1, 2), (3,), "self stub", 1.0),
        Example((1, 2), (3,), "bare", 0.0),
    ]
)
HELD_OUT = gather([Example((1,), (2,), "code", 0.0), Example((1,), (2,), "embedded", 0.0)])
TOLD = DataFacts(examples=4, left_out=7, repetitions=9, words=8, held_out=2, prompts_sha256="cd" * 32)
ENDED = Ended(
    machine="one accelerator, torch 2",
    seconds=120.4,
    stored_sha256="ef" * 32,
    stored_bytes=123,
    parameters=456,
    roundings=[Rounding("fc.weight", 4, 80, 0.5, 0.1), Rounding("norm.weight", 32, 4, 0.0, 0.0)],
    by_set={"code": 3.0, "math": 2.0, "embedded": 9.0, "none left": float("nan")},
    by_set_stored={"code": 2.75},
    curves=True,
)
DFLASH = DrafterSpec(name="mine", kind="dflash", layers=2, taps=(1, 8), inner=8, soft_share=0.8)


def plan(*drafters: DrafterSpec) -> TrainingPlan:
    schedule = ScheduleSpec(steps=100, sequences=4, anchors=8, gamma=4.0)
    return TrainingPlan(
        name="p",
        seed=6,
        drafts=7,
        mask_token=5,
        licence="Apache-2.0",
        text=TextSpec(),
        schedule=schedule,
        drafter=drafters,
    )


def card(spec: DrafterSpec = DFLASH, told: DataFacts = TOLD, held_out: Corpus = HELD_OUT) -> Card:
    story = Story("specpilot-harness drafters train p.toml", "0123abc", "2026-01-02", told)
    whole = plan(spec, DrafterSpec(name="other", kind="eagle3", layers=1, taps=(1,), inner=8))
    return card_of(spec, whole, TARGET, (CORPUS, held_out), story, ENDED)


def test_each_source_has_its_licence_and_what_was_written_on_it() -> None:
    found = {
        one.name: (one.licence, one.conversations, one.tokens, one.sha256) for one in card().data.sources
    }
    assert found == {
        "sums": ("MIT", 2, 5, "cd" * 32),
        "function stubs made of those tasks": ("written by the target (Apache-2.0)", 1, 1, None),
        "bare": ("not stated", 1, 1, "cd" * 32),
    }


def test_how_the_text_was_written_is_told_from_the_text() -> None:
    data = card().data
    assert "50 % of the answers greedily, the rest at temperature 0.7 or 1;" in data.written_by
    assert "(9) left out" in data.written_by
    assert data.disjoint_from == ("code", "embedded")  # an older data.json does not name the sets
    named = DataFacts(examples=4, left_out=7, repetitions=9, words=8, held_out=2, disjoint_from=("a", "b"))
    assert card(told=named).data.disjoint_from == ("a", "b")


@pytest.mark.parametrize(
    ("soft", "loss"),
    [
        (0.0, "cross entropy with the written token (1), draft k weighted exp(-k/4)"),
        (
            0.8,
            "cross entropy with the written token (0.2) and the distribution of the target (0.8), draft k "
            "weighted exp(-k/4)",
        ),
        (1.0, "cross entropy with the distribution of the target (1), draft k weighted exp(-k/4)"),
    ],
)
def test_the_loss_is_told_in_words(soft: float, loss: str) -> None:
    spec = DrafterSpec(name="mine", kind="dflash", layers=2, taps=(1, 8), inner=8, soft_share=soft)
    made = card(spec).training
    assert made.loss == loss
    assert (made.steps, made.anchors, made.seconds, made.seed) == (100, 32, 120, 6)
    assert made.settings["drafters trained together"] == 2


def test_the_worst_rounding_is_named() -> None:
    stored = card().stored
    assert (stored.largest_error, stored.worst_tensor) == (0.5, "fc.weight")
    assert stored.bits == {"fc.weight": 4, "norm.weight": 32}
    assert (stored.parameters, stored.bytes) == (456, 123)


def test_the_mean_is_over_public_sets_that_have_a_text_left() -> None:
    first, second, third = card().notes
    assert "code 3.00, math 2.00, embedded 9.00; mean of two sets 2.50" in first
    assert "none left" not in first
    assert second.endswith("as stored: code 2.75.")
    assert third == "Trained in 120 s together with 1 more, 60 s for each."


def test_the_network_is_told_in_a_sentence() -> None:
    kinds: tuple[Literal["dflash", "dflash2", "dspark", "eagle3"], ...]
    kinds = ("dflash", "dflash2", "dspark", "eagle3")
    told = {
        kind: summary(DrafterSpec(name="x", kind=kind, layers=1, taps=(1, 2), inner=8, rank=48), 7)
        for kind in kinds
    }
    assert "a block of eight rows: the anchor and seven drafts" in told["dflash"]
    assert "a selector of rank 48 over the best 16 tokens" in told["dflash2"]
    assert "a block of seven rows that starts at the anchor, a Markov head of rank 48" in told["dspark"]
    assert told["eagle3"].startswith("One layer over two taps of the target that drafts token by token")


def test_a_state_keeps_the_time_that_earlier_parts_took(tmp_path: Path) -> None:
    reached = Reached(3, {"mine": [Point(3, 2.5, 1.5)]}, 12.5)
    save_state(tmp_path, [], "p", reached)
    assert load_state(tmp_path, [], "p") == reached
