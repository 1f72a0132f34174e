"""Two-level verification as arms of a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from harness.errors import BackendError, UsageError
from harness.models import resolve_model
from harness.plan import ArmSpec, Deployment
from harness.records import DecodeRequest, Sampling, StepEvent
from reference_mechanisms.arm_steps import lanes_of
from reference_mechanisms.arm_targets import Loaded, setup_of
from reference_mechanisms.arms import ParameterError, parse_settings
from reference_mechanisms.backend import ReferenceSession, open_session
from reference_mechanisms.engine.cache import Window
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.verification.two_level.figures import SCHEMA
from reference_mechanisms.verification.two_level.holding import Holding
from reference_mechanisms.verification.two_level.level_one import LevelOne
from tests.harness.tiny import deployment_of

EXIT = {"level_one": "early-exit", "level_one_layers": 1}
ARMS: dict[str, dict[str, Any]] = {
    "ar": {"drafter": "none"},
    "alone": {"drafter": "none", "two_level": "hold", "rounds": 4, "held": 4} | EXIT,
    "4-bit": {"drafter": "replay", "drafts": 3, "two_level": "hold", "level_one": "four-bit", "held": 9},
    "window": {
        "drafter": "ngram",
        "two_level": "hold",
        "level_one": "window",
        "level_one_recent": 6,
        "held_confidence": 0.1,
    },
    "stage": {"drafter": "replay", "two_level": "stage", "stage_first": 3},
    "fast": {
        "drafter": "replay",
        "drafts": 3,
        "two_level": "recheck",
        "level_one": "bf16",
        "recheck_margin": 0.2,
    },
    "trusting": {
        "drafter": "replay",
        "drafts": 3,
        "two_level": "recheck",
        "level_one": "bf16",
        "recheck": "near-ties",
        "recheck_margin": 2.0,
    },
}


def arms(*names: str, **changed: dict[str, Any]) -> list[ArmSpec]:
    return [
        ArmSpec(
            name=name,
            kind="ar" if name == "ar" else "candidate",
            backend="reference_mechanisms.backend:open_session",
            params=(ARMS | changed)[name],
        )
        for name in names
    ]


@pytest.fixture(scope="module")
def deployment(folders: dict[str, Path]) -> Deployment:
    return deployment_of(folders["dense"])


@pytest.fixture(scope="module")
def session(deployment: Deployment) -> ReferenceSession:
    return open_session(deployment, arms(*ARMS))


def requests(**sampling: object) -> list[DecodeRequest]:
    return [
        DecodeRequest(
            request_id=f"r{n}",
            prompt_token_ids=(256, *range(97, 99 + n)),
            sampling=msgspec.convert({"max_tokens": 14, **sampling}, Sampling),
            capture_logits=True,
        )
        for n in range(2)
    ]


def told(events: list[StepEvent]) -> list[tuple[str | None, str | None]]:
    ends = sorted((event for event in events if event.finish_reason), key=lambda event: event.index)
    return [(event.logits_sha256, event.text) for event in ends]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ids_and_logits_are_bitwise_those_of_ar(session: ReferenceSession, temperature: float) -> None:
    batch = requests(temperature=temperature)
    plain = told(list(session.stream("ar", batch)))
    for name in ("alone", "4-bit", "window", "stage", "fast"):
        session.prepare(name, batch)
        part = batch if temperature else batch[:1]  # the second batch is larger: caches grow
        assert told(list(session.stream(name, part))) == plain[: len(part)]


def test_near_ties_decided_by_the_target_alone_leave_this_output_as_it_is(session: ReferenceSession) -> None:
    batch = requests()
    session.prepare("trusting", batch)
    found = [text for _, text in told(list(session.stream("trusting", batch)))]
    assert found == [text for _, text in told(list(session.stream("ar", batch)))]
    with pytest.raises(BackendError, match="near ties of raw logits say nothing"):
        list(session.stream("trusting", requests(temperature=0.9)))


def test_the_session_says_what_verifies(session: ReferenceSession) -> None:
    said = session.describe()["two_level"]
    assert said["4-bit"] == (
        "level one (4-bit weights) holds up to 9 tokens of 2 rounds; the target verifies all of them"
    )
    assert said["stage"] == "staged, 3 tokens first"
    assert "decides where its best logit is 2 ahead, the target near ties only" in said["trusting"]
    assert "until a choice is closer than 0.2" in said["fast"]
    assert "ar" not in said


def test_a_hybrid_target_has_two_levels_and_a_fast_form_too(folders: dict[str, Path]) -> None:
    exact: dict[str, Any] = {
        "drafter": "replay",
        "two_level": "recheck",
        "level_one": "wy",
        "recheck_margin": 0.01,
    }
    more = {"wy": {"drafter": "replay", "delta_form": "wy"}, "exact": exact}
    session = open_session(deployment_of(folders["hybrid"]), arms("ar", "4-bit", *more, **more))
    batch = requests()[:1]
    plain = told(list(session.stream("ar", batch)))
    for name in ("4-bit", "exact", "wy"):
        session.prepare(name, batch)
        ((logits, text),) = told(list(session.stream(name, batch)))
        assert text == plain[0][1]
        assert (logits == plain[0][0]) == (name != "wy")
    assert session.describe()["not_bit_exact"] == {"wy": "recurrent layers in the WY form"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"drafter": "none", "delta_form": "wy"}, "`delta_form` = 'wy' is for recurrent layers"),
        (
            {"drafter": "ngram", "two_level": "recheck", "level_one": "wy", "recheck_margin": 1},
            "level one 'wy'",
        ),
    ],
)
def test_the_fast_form_is_refused_without_recurrent_layers(
    deployment: Deployment, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=rf"arms\[x\]\.params: {message}"):
        open_session(deployment, arms("x", x=params))


@pytest.mark.parametrize(("beta", "on"), [(0.99, True), (0.2, False)])
def test_measured_figures_switch_level_one_on_where_it_pays(
    deployment: Deployment, folders: dict[str, Path], tmp_path: Path, beta: float, on: bool
) -> None:
    file = tmp_path / "figures.json"
    params: dict[str, Any] = ARMS["alone"] | {"gain_figures": str(file), "held": 12}
    del params["rounds"]
    measured = {
        "beta": beta,
        "level_one_tokens": 1.0,
        "tokens": 1.0,
        "draft_seconds": 0.0,
        "level_one_seconds": 0.3,
        "verify_seconds": {"1": 1.0, "32": 1.1},
        "rows": 1,
    }
    setup = {"target_sha256": "", "dtype": "float32", "device": "", "level_one": "", "drafter": "none"}
    file.write_text(json.dumps({"schema": SCHEMA, "setup": setup | {"drafts": 0}, "measured": measured}))
    with pytest.raises(UsageError, match=r"arms\[alone\]\.params: .*measured with `target_sha256` ''"):
        open_session(deployment, arms("ar", "alone", alone=params))
    sha256 = resolve_model(deployment.target).sha256 or ""
    loaded = Loaded(load_target(folders["dense"], torch.float32, torch.device("cpu")), None, sha256, (), 128)
    found = setup_of(parse_settings(params), loaded)
    content = {"schema": SCHEMA, "setup": msgspec.to_builtins(found), "measured": measured}
    file.write_text(json.dumps(content))
    session = open_session(deployment, arms("ar", "alone", alone=params))
    events = list(session.stream("alone", requests()))
    assert told(events) == told(list(session.stream("ar", requests())))
    assert max(event.num_draft_tokens for event in events) == (12 if on else 0)
    assert ("is off: the measured figures give 0." in session.describe()["two_level"]["alone"]) is not on


def test_defaults_are_filled_in() -> None:
    hold = parse_settings({"drafter": "ngram", "two_level": "hold", "level_one": "window"})
    assert hold.two_level is not None
    assert hold.two_level.level_one == LevelOne("window", window=Window(4, 512))
    assert hold.two_level.holding == Holding(rounds=2, tokens=16)
    assert (hold.rows, hold.plain_rows) == (17, 8)
    stage = parse_settings({"drafter": "ngram", "two_level": "stage", "stage_first": 3})
    assert (stage.rows, stage.plain_rows) == (4, 8)
    tree = parse_settings({"drafter": "dflash", "tree": 20} | ARMS["alone"] | {"drafter": "dflash"})
    assert (tree.rows, tree.verifies_trees) == (5, False)
    assert parse_settings({"drafter": "ngram"}).two_level is None


WRONG: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"rounds": 3}, "`rounds` is given without `two_level`: hold, stage, recheck"),
    (lambda: {"two_level": "both"}, "`two_level` must be one of hold, stage, recheck, got 'both'"),
    (
        lambda: {"two_level": "hold"},
        "`level_one` must be one of four-bit, early-exit, window, bf16, wy, got None",
    ),
    (lambda: {"two_level": "hold", "level_one": "bf16"}, "for `two_level` = 'recheck'"),
    (lambda: {"two_level": "hold", "level_one": "early-exit"}, "`level_one_layers` must be an integer"),
    (
        lambda: {"two_level": "hold", "level_one_layers": 3, "level_one": "four-bit"},
        "`level_one_layers` is of no",
    ),
    (lambda: ARMS["alone"] | {"stage_first": 3}, "`stage_first` is of no use to `two_level` 'hold'"),
    (lambda: ARMS["alone"] | {"held": 65}, "`held` must be an integer in 1..64"),
    (lambda: ARMS["alone"] | {"held_confidence": 1.0}, "`held_confidence` must be a number from 0"),
    (lambda: ARMS["alone"] | {"gain_figures": "/no/file"}, "`gain_figures` must be the file"),
    (lambda: ARMS["alone"] | {"gain_figures": __file__}, "`rounds` is chosen by `gain_figures`"),
    (lambda: ARMS["stage"] | {"level_one": "four-bit"}, "`level_one` is of no use to `two_level` 'stage'"),
    (lambda: ARMS["stage"] | {"drafter": "none"}, "'stage' needs drafts to verify in pieces"),
    (lambda: ARMS["fast"] | {"level_one": "four-bit"}, "a near tie says something only where"),
    (lambda: {"delta_form": "dense"}, "`delta_form` must be one of recurrence, wy, got 'dense'"),
    (lambda: ARMS["fast"] | {"recheck": "some"}, "`recheck` must be one of all, near-ties"),
    (lambda: ARMS["fast"] | {"recheck_margin": 0}, "`recheck_margin` must be above 0"),
    (lambda: ARMS["trusting"] | {"held": 3}, "which holds nothing back"),
    (lambda: ARMS["trusting"] | {"drafter": "dflash", "tree": 8}, "close choices of nodes off the path"),
    (
        lambda: ARMS["alone"] | {"drafter": "dflash", "draft_sample_method": "probabilistic"},
        "drawn drafts would only be rejected more often",
    ),
]


@pytest.mark.parametrize(("params", "message"), WRONG)
def test_what_does_not_go_together_is_refused_by_name(
    params: Callable[[], dict[str, Any]], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_settings({"drafter": "ngram"} | params())


def test_an_exit_behind_the_last_layer_is_refused_by_arm(deployment: Deployment) -> None:
    late = ARMS["alone"] | {"level_one_layers": 2}
    with pytest.raises(UsageError, match=r"arms\[alone\]\.params: an early exit behind 2 layers"):
        open_session(deployment, arms("alone", alone=late))


def test_steps_of_fixed_shape_take_what_level_one_holds_and_no_near_ties() -> None:
    cuda: Any = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(ParameterError, match="'near-ties' does not run in steps of fixed shape"):
        lanes_of({"x": parse_settings(ARMS["trusting"])}, cuda, 64)
