"""Trees by measured figures: traces of a drafter, a file, arms of a plan."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.cli import main
from harness.errors import UsageError
from harness.models import resolve_model
from harness.plan import Deployment
from reference_mechanisms.arm_drafters import weights_sha256
from reference_mechanisms.arm_figures import Sample
from reference_mechanisms.arms import ParameterError, parse_settings
from reference_mechanisms.backend import measure_figures, open_session
from reference_mechanisms.drafters.binding import Bound
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.tracing import traced
from reference_mechanisms.drafters.trained import Drafting, Ends
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Target
from reference_mechanisms.request import Request, Sampling
from reference_mechanisms.targets.loading import load_target
from reference_mechanisms.verification.budgeting import Costs
from reference_mechanisms.verification.calibrating import MISSED, Calibration, Line, calibrate
from reference_mechanisms.verification.tree_figures import TreeFigures, TreeSetup, write_tree_figures
from tests.harness.tiny import VOCAB, deployment_of, write_llama
from tests.reference_mechanisms.drafters.networks import FULL, dflash, dspark, eagle3
from tests.reference_mechanisms.test_trained_arms import arm, folder_of, requests, told

HIDDEN, NODES = 32, 8
NETWORKS: dict[str, Callable[[], Network]] = {
    "dflash": lambda: dflash(FULL, 4, VOCAB, HIDDEN, own=True),
    "dspark": lambda: dspark(FULL, 3, VOCAB, HIDDEN, own=True),
    "eagle3": lambda: eagle3(VOCAB, HIDDEN),
}
# Whatever stands behind the first token is certain, which the drafter's own probabilities never say.
DEEP = Calibration((Line(1.0, 0.0), Line(1.0, 40.0)), 1.0)
STEEP = Costs(0.0, {rows: float(rows) for rows in (1, 2, NODES + 1)})
FLAT = Costs(0.0, dict.fromkeys((1, 2, NODES + 1), 1.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return load_target(write_llama(folder / "target"), torch.float32, torch.device("cpu"))


def bound_of(name: str, target: Target) -> Bound:
    network: Any = NETWORKS[name]()
    return Bound(network.float(), (0, 1), Ends(target.embed, target.logits))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_drafters_own_chain_has_rank_0_throughout(target: Target, name: str) -> None:
    bound = bound_of(name, target)
    drafter = bound.new_drafter(Drafting(drafts=3))
    prompt = (256, 97, 98, 99)
    drafter.begin(0, Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=20)))
    rows = Rows(prompt, range(4), (Segment(0, 0, 4),))
    drafter.extend(0, torch.cat(target.forward(rows, target.new_cache(1, 8), (0, 1)).taps, -1))
    one = Wanted(0, (97,), 10)

    def ranks(truth: Sequence[int], count: int) -> list[int]:
        return [place.rank for place in drafter.judged(one, truth, count)]

    (own,) = drafter.propose([one])
    assert ranks(own.token_ids, 4) == [0, 0, 0]
    other = own.token_ids[1]
    assert ranks((own.token_ids[0], (other + 1) % VOCAB, other), VOCAB)[1] > 0
    first = ranks(((own.token_ids[0] + 1) % VOCAB, other), 1)
    assert first == [MISSED]
    assert drafter.propose([one]) == [own]


def test_traces_of_decoding_calibrate_a_tree(target: Target) -> None:
    bound = bound_of("dflash", target)
    found = traced(
        target,
        bound.new_drafter(Drafting(drafts=3)),
        [(256, 97, 98), (256, 49)],
        tokens=16,
        depths=3,
        candidates=VOCAB,
    )
    # A random drafter is hardly ever right, so nearly every token of an output has a trace.
    assert 24 <= len(found) <= 30
    assert {len(trace) for trace in found} == {1, 2, 3}
    places = [place for trace in found for place in trace]
    assert min(place.rank for place in places) >= 0
    assert all(float(place.log_probabilities.exp().sum()) == pytest.approx(1.0) for place in places)
    assert len(calibrate(found, depths=3).lines) == 3


@pytest.fixture(scope="module")
def deployment(folder: Path, target: Target) -> Deployment:
    del target
    return deployment_of(folder / "target")


def setup(deployment: Deployment, folder: Path, checkpoint: str) -> TreeSetup:
    sha256 = resolve_model(deployment.target).sha256 or ""
    del folder
    return TreeSetup(
        target_sha256=sha256,
        drafter_sha256=weights_sha256(Path(checkpoint)),
        dtype="float32",
        device="cpu, 1 threads",
    )


def test_arms_draft_by_what_was_measured(deployment: Deployment, folder: Path) -> None:
    checkpoint = folder_of("dflash", folder)
    mine = setup(deployment, folder, checkpoint)
    names = {"steep": STEEP, "flat": FLAT}
    for name, costs in names.items():
        write_tree_figures(folder / f"{name}.json", mine, TreeFigures(calibration=DEEP, costs=costs))
    common: dict[str, Any] = {"checkpoint": checkpoint, "tree": NODES, "drafts": 3}
    arms = {"raw": common, "fixed": common | {"tree_figures": str(folder / "flat.json")}}
    for name in names:
        arms[name] = common | {"tree_figures": str(folder / f"{name}.json"), "tree_budget": "measured"}
    session = open_session(
        deployment, [arm("ar", "none"), *(arm(name, "dflash", **params) for name, params in arms.items())]
    )
    plain = told(list(session.stream("ar", requests())))
    drafted: dict[str, int] = {}
    for name in arms:
        events = list(session.stream(name, requests()))
        assert told(events) == plain
        drafted[name] = max(event.num_draft_tokens for event in events)
    # At prices by the row an unlikely node does not pay; at flat ones all do.
    assert drafted == {"raw": NODES, "fixed": NODES, "steep": 0, "flat": NODES}
    assert session.describe()["tree_figures"]["fixed"] == str(folder / "flat.json")


def test_figures_are_measured_for_an_arm_and_go_into_it(deployment: Deployment, folder: Path) -> None:
    ticks = itertools.count()
    sample = Sample([(256, 97, 98), (256, 49)], 12, lambda: float(next(ticks)))
    checkpoint = folder_of("dflash", folder)
    tree: dict[str, Any] = {"drafter": "dflash", "checkpoint": checkpoint, "tree": 4}
    out = folder / "measured.json"
    timed = sample._replace(clock=time.perf_counter)
    assert "most tokens a second with trees of 4 nodes" in measure_figures(deployment, tree, timed, out)
    level: dict[str, Any] = {
        "drafter": "dflash",
        "checkpoint": checkpoint,
        "two_level": "hold",
        "level_one": "early-exit",
        "level_one_layers": 1,
    }
    gains = folder / "gains.json"
    assert "over 24 tokens; level one's pass 1000.00 ms" in measure_figures(deployment, level, sample, gains)
    arms = {
        "tree": tree | {"tree_figures": str(out), "tree_budget": "measured"},
        "level": level | {"gain_figures": str(gains)},
    }
    specs = [arm(name, **params) for name, params in arms.items()]
    session = open_session(deployment, [arm("ar", "none"), *specs])
    plain = told(list(session.stream("ar", requests())))
    for name in arms:
        assert told(list(session.stream(name, requests()))) == plain
    assert "level one is off" in session.describe()["two_level"]["level"]
    with pytest.raises(UsageError, match="there is nothing to measure"):
        measure_figures(deployment, {"drafter": "ngram"}, sample, out)


def test_the_command_line_measures_for_params_as_in_a_plan(
    deployment: Deployment, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "deployment.toml"
    path.write_text(
        f"""schema = "deployment/1"
name = "tiny"
device = "cpu"
context_length = 256
threads = 1
[target]
path = "{deployment.target.path}"
dtype = "float32"
"""
    )
    params = f'drafter = "dflash", checkpoint = "{folder_of("dflash", folder)}", tree = 4'
    command = ["drafters", "figures", str(path), "--prompts", "1", "--tokens", "4"]
    out = folder / "from-command.json"
    assert main([*command, "--params", params, "--out", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    assert json.loads(out.read_text())["schema"] == "tree-figures/2"
    assert main([*command, "--params", "drafter: dflash", "--out", str(out)]) == 3
    assert "--params:" in capsys.readouterr().err


def test_calibrated_trees_prefer_what_was_right(target: Target) -> None:
    bound = bound_of("dflash", target)
    prompt, found = (256, 97, 98, 99), []
    rows = Rows(prompt, range(4), (Segment(0, 0, 4),))
    taps = torch.cat(target.forward(rows, target.new_cache(1, 8), (0, 1)).taps, -1)
    one = Wanted(0, (97,), 10)
    for calibration in (None, DEEP):
        drafter = bound.new_drafter(Drafting(drafts=3, tree=3, calibration=calibration))
        drafter.begin(0, Request(name="r", prompt=prompt, sampling=Sampling(max_tokens=20)))
        drafter.extend(0, taps)
        (tree,) = drafter.propose([one])
        first = drafter.judged(one, tree.token_ids[:1], 3)[0]
        found.append((first.rank, tree.parents))
    assert found[1] == (0, (-1, 0, 0))
    assert found[0][0] == 0
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafter_sha256": "ff"}, "measured with `drafter_sha256` 'ff'"),
        ({"device": "cpu, 9 threads"}, "measured with `device` 'cpu, 9 threads'"),
        ({}, "'measured', but `tree_figures` holds no costs"),
        (None, "holds no figures of trees"),
    ],
)
def test_figures_of_something_else_are_refused(
    deployment: Deployment, folder: Path, change: dict[str, str] | None, message: str
) -> None:
    checkpoint, path = folder_of("dflash", folder), folder / "other.json"
    write_tree_figures(path, setup(deployment, folder, checkpoint), TreeFigures(calibration=DEEP, costs=FLAT))
    content = json.loads(path.read_text())
    if change is None:
        content.pop("figures")
    elif change:
        content["setup"] |= change
    else:
        content["figures"]["costs"] = None
    path.write_text(json.dumps(content))
    params = {"tree": 4, "tree_figures": str(path), "tree_budget": "measured", "checkpoint": checkpoint}
    with pytest.raises(UsageError, match=rf"arms\[x\]\.params: .*{message}"):
        open_session(deployment, [arm("x", "dflash", **params)])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tree_figures": __file__}, "are of a `tree`"),
        ({"tree": 4, "tree_figures": "/no/file"}, "`tree_figures` must be the file"),
        ({"tree": 4, "tree_budget": "all"}, "`tree_budget` must be one of fixed, measured"),
        ({"tree": 4, "tree_budget": "measured"}, "needs the costs in `tree_figures`"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_settings({"drafter": "dflash"} | params)
