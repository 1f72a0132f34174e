"""What steps of trees cost: measured in the engine's own programs, and what a session makes of it."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_mechanisms.arm_steps import budgeted
from reference_mechanisms.arm_targets import Loaded
from reference_mechanisms.arm_tree_figures import lanes_maker, tree_figures_of
from reference_mechanisms.arms import ArmSettings, ParameterError, parse_settings
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.trained import Drafting, Ends
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs, Program
from reference_mechanisms.engine.lanes import Lanes, Static, positions_of
from reference_mechanisms.engine.pricing import REPEATS, STEPS, Outputs, price
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.verification.budgeting import Costs, best_rows
from reference_mechanisms.verification.calibrating import Calibration, Line
from reference_mechanisms.verification.tree_figures import TreeFigures
from reference_mechanisms.verification.two_level.measuring import device_clock
from tests.harness.tiny import VOCAB, write_llama
from tests.reference_mechanisms.drafters.networks import FULL, dflash

CPU = torch.device("cpu")
OUTPUTS = Outputs([(256, 97, 98), (256, 49)], 12)
DRAFT, PROMPT = 1.0, 1000.0  # seconds of programs, by the meter
TREE = 12


class Meter(Graphs):
    """Runs programs as they are, and lets a clock of its own go on by what each is said to cost."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.now = 0.0
        self.runs = Counter[tuple[str, int]]()

    def program(self, work: Program) -> Program:
        lane: Any = getattr(work, "__self__", None)
        name, step = getattr(work, "__name__", ""), getattr(lane, "_step", None)
        rows = 0 if step is None else step.rows
        costs = {"_verify": float(rows), "_verify_and_draft": rows + DRAFT, "_make_draft": DRAFT}

        def run() -> None:
            self.now += costs.get(name, PROMPT)
            self.runs[name, rows] += 1
            work()

        return run


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(write_llama(tmp_path_factory.mktemp("prices") / "target"), torch.float32, CPU)


@pytest.fixture(scope="module")
def bound(target: Target) -> Bound:
    network: Any = dflash(FULL, 4, VOCAB, 32, own=True)
    return Bound(network.float(), (0, 1), Ends(target.embed, target.logits))


def metered(target: Target, meter: Meter) -> Callable[[int], Lanes]:
    return lambda rows: Lanes(target, 64, Static(rows, meter))


def test_costs_are_those_of_the_programs_that_decode(target: Target, bound: Bound) -> None:
    meter = Meter()
    arm = dataclasses.replace(parse_settings({"drafter": "dflash", "tree": TREE}), drafts=3)
    loaded = Loaded(target, Path(), "", (), 256)
    found = tree_figures_of(arm, loaded, bound, OUTPUTS, lambda: meter.now, metered(target, meter)).figures
    # A draft alone, and whole steps without it: prompts and what the host does are not among them.
    assert found.costs == Costs(DRAFT, {1: 8.0, 8: 8.0, 16: 16.0})
    for rows in (8, 16):
        assert meter.runs["_verify_and_draft", rows] > REPEATS * STEPS  # outputs were decoded in them, too
        assert meter.runs["_make_draft", rows] >= REPEATS * STEPS
    assert dict(found.tokens or {}) == {
        rows: pytest.approx(decoded(target, bound, min(TREE, rows - 1), found.calibration))
        for rows in (8, 16)
    }


def decoded(target: Target, bound: Bound, nodes: int, calibration: Calibration) -> float:
    """Tokens of a step, decoded in as many rows as are needed."""
    drafting = Drafting(drafts=3, tree=nodes, calibration=calibration)
    decoder = Decoder(target, (), lambda _ids: "", 64, spare=64)
    return statistics.fmean(
        len(event.token_ids)
        for prompt in OUTPUTS.prompts
        for event in decoder.stream(
            [Request(name="r", prompt=tuple(prompt), sampling=Sampling(max_tokens=12))],
            bound.new_drafter(drafting),
        )
        if event.kind == "step"
    )


def test_lanes_elsewhere_hold_what_is_decoded(target: Target) -> None:
    """And all that steps can accept while they are timed."""
    lanes = lanes_maker(Loaded(target, Path(), "", (), 8), Outputs([[1] * 3], 500), 3)(16)
    assert lanes.rows == 16
    assert lanes.cache.capacity >= positions_of(3 + 500 + STEPS * 4, 16)


def test_what_the_host_decides_has_no_program_to_time(target: Target, bound: Bound) -> None:
    hosted = Drafting(drafts=3, tree=4, costs=Costs(0.0, {8: 1.0}))
    meter = Meter()
    with pytest.raises(ValueError, match="the host has a part"):
        price(
            target,
            metered(target, meter)(8),
            lambda: bound.new_drafter(hosted),
            OUTPUTS,
            lambda: meter.now,
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_steps_are_priced_for_the_whole_context_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA what is timed are replays of graphs, in lanes as long as those of a session."""
    cuda = torch.device("cuda")
    target = load_target(write_llama(tmp_path / "target"), torch.bfloat16, cuda)
    network: Any = dflash(FULL, 4, VOCAB, 32, own=True)
    drafter = Bound(network.to(cuda, torch.bfloat16), (0, 1), Ends(target.embed, target.logits))
    arm = dataclasses.replace(parse_settings({"drafter": "dflash", "tree": TREE}), drafts=3)
    loaded = Loaded(target, Path(), "", (), 256)
    replays, replay = Counter[str](), torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replays.update(["all"]), replay(graph))[1]
    )
    new_lanes = lanes_maker(loaded, OUTPUTS, 3)
    clock = device_clock(time.perf_counter, cuda)
    found = tree_figures_of(arm, loaded, drafter, OUTPUTS, clock, new_lanes).figures
    assert found.costs is not None
    assert set(found.costs.verify) == {1, 8, 16}
    assert replays["all"] > 4 * REPEATS * STEPS  # without drafts, a chain, two sizes of trees
    assert set(found.tokens or {}) == {8, 16}


LINES = Calibration((Line(1.0, 0.0),), 1.0)
COSTS = Costs(0.2, {1: 0.5, 8: 0.6, 16: 0.7, 32: 0.9, 64: 2.0})  # 64 rows do not pay
TOKENS = {8: 3.2, 16: 3.6, 32: 4.5, 64: 5.0}


def measured(tree: int, *, graphs: bool = True) -> ArmSettings:
    return ArmSettings(drafter="dflash", drafts=7, tree=tree, tree_measured=True, graphs=graphs)


def test_a_session_of_fixed_shapes_settles_budgets_by_rate() -> None:
    arms = {
        "wide": measured(63),
        "narrow": measured(15),
        "between": measured(12),
        "hosted": measured(63, graphs=False),
        "fixed": dataclasses.replace(measured(63), tree_measured=False),
    }
    figures = dict.fromkeys(arms, TreeFigures(calibration=LINES, costs=COSTS, tokens=TOKENS))
    found = budgeted(arms, figures, stepped=True)
    assert {name: (one.tree, one.tree_measured) for name, one in found.items()} == {
        "wide": (31, False),  # 4.5 tokens in 1.1 s; most tokens are those of 64 rows
        "narrow": (15, False),
        "between": (12, False),
        "hosted": (63, True),
        "fixed": (63, False),
    }
    assert budgeted(arms, figures, stepped=False) == arms


def test_of_equal_rates_the_smaller_step_is_taken() -> None:
    assert best_rows({16: 2.0, 8: 1.0}, Costs(0.0, {8: 1.0, 16: 2.0}), 64) == 8


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (TreeFigures(calibration=LINES, costs=COSTS), "no step of trees was priced"),
        (TreeFigures(calibration=LINES, costs=COSTS, tokens={32: 3.0}), "at most 16 rows"),
    ],
)
def test_figures_without_such_a_step_are_refused(figures: TreeFigures, message: str) -> None:
    with pytest.raises(ParameterError, match=rf"arms\[a\]\.params: .*{message}"):
        budgeted({"a": measured(15)}, {"a": figures}, stepped=True)
