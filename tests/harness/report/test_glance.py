"""The cards at the top of a report."""

from __future__ import annotations

from harness.report.glance import audit_card, cards, lossless_card, system_card
from harness.results import Audit
from tests.harness.report import build, pieces


def test_the_word_of_losslessness_is_the_verdict_and_its_tone_follows() -> None:
    words = [
        (card.word, card.tone)
        for card in map(
            lossless_card, (build.report(), build.near_tie(), build.violated(), build.distribution())
        )
    ]
    assert words == [("exact", "good"), ("near-tie", "fair"), ("violated", "bad"), ("not-judged", "plain")]
    assert lossless_card(build.violated()).points == ("stock: violated (4 near ties, 27 violations)",)
    assert dict(lossless_card(build.near_tie()).facts)["near-tie margin"] == "0.5234 logits"
    assert lossless_card(build.report(losslessness=None)).word == "not judged"


def test_audits_that_failed_are_named_first_and_broken_drafters_count() -> None:
    audits = (
        Audit(name="fine", passed=True, detail="ok"),
        Audit(name="open", passed=None, detail="cannot tell"),
        Audit(name="wrong", passed=False, detail="because"),
    )
    card = audit_card(build.report(audits=audits, detections=()))
    assert (card.word, card.tone) == ("1 failed", "bad")
    assert card.points == ("FAILED wrong: because", "no verdict: open")
    assert dict(card.facts) == {
        "passed": "1",
        "failed": "1",
        "without a verdict": "1",
        "drafters that may be broken": "0",
    }
    assert audit_card(build.report(audits=audits[:2], detections=())).tone == "fair"
    assert audit_card(build.report(audits=audits[:1], detections=())).tone == "good"
    broken = audit_card(build.report(audits=audits[:1]))  # the sample's detector found one
    assert (broken.word, broken.tone) == ("none failed, 1 drafter may be broken", "fair")
    assert audit_card(build.report(audits=())).tone == "bad"


def test_the_machine_is_the_gpu_of_the_arms_or_the_cpu() -> None:
    assert system_card(build.report()).word == "Example 9000"
    told = {pieces.BACKEND: {"device": "cuda:0", "gpu": "NVIDIA H200"}}
    assert system_card(build.report(backends=told)).word == "NVIDIA H200"
    seen = build.report(backends={}, environment={"gpus": [{"name": "NVIDIA H100"}]})
    assert system_card(seen).word == "NVIDIA H100"


def test_a_long_list_is_cut_and_says_so() -> None:
    many = tuple(Audit(name=f"a{n}", passed=None, detail="") for n in range(30))
    points = audit_card(build.report(audits=many)).points
    assert len(points) == 9
    assert points[-1] == "and 23 more, below"  # one of them the broken drafter
    assert len(cards(build.report())) == 3
