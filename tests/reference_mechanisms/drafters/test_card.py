from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reference_mechanisms.drafters.card import (
    Card,
    Curve,
    Data,
    Measured,
    OnSet,
    Source,
    Stored,
    Training,
    read_card,
    render_card,
    write_card,
)
from reference_mechanisms.errors import DrafterError

CARD = Card(
    schema="drafter-card/1",
    drafter="dspark",
    target="tiny",
    target_sha256="ab" * 32,
    licence="Apache-2.0",
    summary="One layer, three taps.",
    data=Data(
        sources=(
            Source(name="questions", licence="MIT", conversations=1200, tokens=345_678, sha256="cd" * 32),
        ),
        written_by="the target at temperature 0",
        disjoint_from=("gsm8k", "mbpp"),
        overlap_words=13,
        left_out=7,
        seed=5,
    ),
    training=Training(
        command="specpilot-harness drafters train plan.toml",
        commit="0123abc",
        machine="one accelerator",
        date="2026-01-02",
        seconds=321.4,
        steps=2000,
        anchors=4096,
        learning_rate=0.001,
        loss="cross entropy",
        seed=6,
        settings={"gamma": 4.0},
    ),
    stored=Stored(
        parameters=8_740_000,
        bytes=8_800_000,
        sha256="ef" * 32,
        bits={"fc.weight": 8, "norm.weight": 32, "markov_head.markov_w1.weight": 4},
        largest_error=0.0123,
        worst_tensor="fc.weight",
    ),
)
MEASURED = Measured(
    report="reports/some",
    plan="h200-drafters",
    plan_hash="12" * 32,
    machine="one accelerator",
    date="2026-01-03",
    command="specpilot-harness run h200-drafters",
    drafts=2,
    max_tokens=256,
    stock_verdict="exact",
    self_exact=True,
    sets={
        "gsm8k": OnSet(
            prompts=64,
            degenerate=3,
            tau=2.345,
            tau_with_degenerate=2.9,
            survival=(0.75, 0.5),
            conditional=(0.75, 0.67),
        ),
        "embedded": OnSet(
            prompts=64, degenerate=64, tau=None, tau_with_degenerate=3.0, survival=(), conditional=()
        ),
    },
    mean=2.345,
)


def with_measurement(**changes: Any) -> Card:
    return msgspec.structs.replace(CARD, measured=(msgspec.structs.replace(MEASURED, **changes),))


def test_a_card_survives_its_file_and_the_readme_is_made_from_it(tmp_path: Path) -> None:
    card = with_measurement()
    write_card(card, tmp_path)
    assert read_card(tmp_path) == card
    assert (tmp_path / "README.md").read_text() == render_card(card)
    first = (tmp_path / "record.json").read_bytes()
    write_card(read_card(tmp_path), tmp_path)
    assert (tmp_path / "record.json").read_bytes() == first


def test_every_fact_of_the_record_is_in_the_readme() -> None:
    card = msgspec.structs.replace(
        with_measurement(),
        curves=(Curve(file="loss.svg", shows="loss over steps"),),
        notes=("a first run failed",),
    )
    text = render_card(card)
    for said in (
        *(
            "# dspark for tiny",
            "One layer, three taps.",
            "ab" * 32,
            "8,740,000",
            "8,800,000 bytes",
            "ef" * 32,
        ),
        *("1 tensors of 4 bits, 1 tensors of 8 bits, 1 tensors of 32 bits", "0.0123 in fc.weight"),
        *("345,678 tokens", "questions", "cd" * 32, "gsm8k, mbpp", "7 prompts that share 13 words"),
        *("drafters train plan.toml", "0123abc", "321 s", "2,000 of 4,096 anchors", "gamma | 4.0"),
        *("**Mean tau 2.35** over the sets without embedded", "gsm8k | 64 | 3 | 2.35 | 2.90 | 0.75 | 0.50 |"),
        *(
            "0.75 | 0.67 |",
            "embedded | 64 | 64 | - | 3.00 | - | - |",
            "exact; logits bitwise",
            "121212121212",
        ),
        *("![loss over steps](loss.svg)", "- a first run failed", "reports/some", "256 tokens"),
    ):
        assert said in text, said
    assert "Not measured" not in text


def test_what_was_not_measured_is_not_told() -> None:
    text = render_card(CARD)
    assert "Not measured yet." in text
    assert "tau" not in text


def test_engines_that_are_not_bitwise_are_told_so() -> None:
    assert "not bitwise" in render_card(with_measurement(self_exact=False))
    assert "bitwise" not in render_card(with_measurement(self_exact=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"schema": "drafter-card/2"}, "schema", id="schema"),
        pytest.param({"mood": "good"}, "mood", id="unknown"),
        pytest.param({"stored": {}}, r"\$.stored", id="missing"),
        pytest.param(
            {"curves": [{"file": "no.svg", "shows": "x"}]}, "`curves` names no.svg", id="no picture"
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    raw = msgspec.to_builtins(CARD) | change
    (tmp_path / "record.json").write_text(json.dumps(raw))
    with pytest.raises(DrafterError, match=message):
        read_card(tmp_path)


def test_a_folder_without_a_record_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="training writes it"):
        read_card(tmp_path)
