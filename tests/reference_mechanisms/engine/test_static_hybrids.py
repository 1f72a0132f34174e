"""Hybrid targets in steps of fixed shape: the bits of one-token steps, for chains and for trees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_mechanisms.drafters.binding import bind
from reference_mechanisms.drafters.calibration import NoDrafter
from reference_mechanisms.drafters.protocol import Drafter
from reference_mechanisms.drafters.trained import Drafting
from reference_mechanisms.engine import static_hybrid
from reference_mechanisms.engine.decode import Decoder
from reference_mechanisms.engine.graphs import Graphs
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.engine.probe import probe_lanes
from reference_mechanisms.errors import TargetError
from reference_mechanisms.kernels.step import delta, trees
from reference_mechanisms.kernels.step.delta import TORCH_DELTA
from reference_mechanisms.request import Sampling
from reference_mechanisms.targets.gated_delta import DeltaInputs
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.linear import prepacks
from reference_mechanisms.targets.loading import load_target
from tests.exhaustive import slow_but
from tests.reference_mechanisms.engine.bench.small import target as small_target
from tests.reference_mechanisms.engine.forcing import (
    Grove,
    GroveDrafter,
    Script,
    ScriptedDrafter,
    ScriptedStatic,
    ids_of,
)
from tests.reference_mechanisms.engine.test_static_steps import DRAFTS, WIDTH, decoded, text_of
from tests.reference_mechanisms.engine.test_trained_drafters import NETWORKS
from tests.reference_mechanisms.engine.tree_drafters import RandomTrees
from tests.reference_mechanisms.targets.hybrids import write_hybrid
from tests.reference_mechanisms.targets.models import CPU, VOCAB, random_ids

CAPACITY, NODES, ROWS, TOKENS = 160, 11, 16, 24
# Around the pieces in which a prompt is run, one token among them.
PROMPTS = tuple(tuple(random_ids(count, seed=count)) for count in (1, 5, 64, 66))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HybridTarget:
    folder = write_hybrid(
        tmp_path_factory.mktemp("hybrid") / "target",
        "qwen3_5",
        hidden_size=WIDTH,
        num_hidden_layers=3,
        full_attention_interval=2,
        initializer_range=0.2,  # wide, so that greedy output is varied
    )
    if not prepacks(torch.float32, CPU):
        pytest.skip("no prepacked product here: torch's own rounds by the row count")
    found = load_target(folder, torch.float32, CPU)
    assert isinstance(found, HybridTarget)
    return found


def static(target: HybridTarget, eos: tuple[int, ...] = (), ahead: int | None = None) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU), ahead=ahead))
    return Decoder(target, eos, text_of, CAPACITY, lanes=lanes)


def dynamic(target: HybridTarget, eos: tuple[int, ...] = ()) -> Decoder:
    return Decoder(target, eos, text_of, CAPACITY, spare=NODES)


@pytest.fixture(scope="module")
def plain(target: HybridTarget) -> dict[tuple[int, ...], tuple[tuple[int, ...], str | None]]:
    """Ids and hashed logits of one-token steps."""
    found = {}
    for prompt in PROMPTS:
        events = decoded(dynamic(target), NoDrafter(), prompt, Sampling(max_tokens=TOKENS), capture=True)
        found[prompt] = ids_of(events), events[-1].logits_sha256
    assert max(len(set(ids)) for ids, _ in found.values()) > 8
    return found


Plain = dict[tuple[int, ...], tuple[tuple[int, ...], str | None]]


@pytest.mark.parametrize("name", ["none", "script", "trees"])
def test_logits_are_bitwise_those_of_one_token_steps(target: HybridTarget, plain: Plain, name: str) -> None:
    """Request after request on the same states; drafts of the host, and none."""
    engine, accepted = static(target), set()
    for seed, prompt in enumerate((*PROMPTS, *PROMPTS[:2])):
        ids, logits = plain[prompt]
        drafters: dict[str, Drafter] = {
            "none": NoDrafter(),
            "script": ScriptedDrafter(Script(ids, VOCAB, seed), 7),
            "trees": RandomTrees({prompt: ids}, VOCAB, seed, NODES),
        }
        events = decoded(engine, drafters[name], prompt, Sampling(max_tokens=TOKENS), capture=True)
        assert ids_of(events) == ids
        assert events[-1].logits_sha256 == logits
        accepted |= {event.accepted for event in events}
    assert name == "none" or accepted >= {0, 1, 2, 3}


DRIVEN = [(name, tree, ahead) for name in NETWORKS for tree in (False, True) for ahead in (0, 1)]
FEW = [one for one in DRIVEN if one[0] == "dflash" or one[1:] == (True, 1)]


@pytest.mark.parametrize(("name", "tree", "ahead"), slow_but(FEW, DRIVEN))
def test_a_lane_that_drives_itself_keeps_states_as_accepted(
    target: HybridTarget, plain: Plain, name: str, tree: bool, ahead: int
) -> None:
    bound = bind(NETWORKS[name]().float(), target, "drafter")
    engine, accepted = static(target, ahead=ahead), set()
    for seed, prompt in enumerate(PROMPTS[1:]):
        ids, logits = plain[prompt]
        drafter: Drafter
        if tree:
            inner = bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES))
            drafter = GroveDrafter(inner, Grove(ids, VOCAB, seed, CPU), prompt)
        else:
            script = Script(ids, VOCAB, seed)
            drafter = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, prompt)
        events = decoded(engine, drafter, prompt, Sampling(max_tokens=TOKENS), capture=not ahead)
        assert ids_of(events) == ids
        assert ahead or events[-1].logits_sha256 == logits
        accepted |= {event.accepted for event in events}
    assert accepted >= {0, 1, 2, 3}


@pytest.mark.parametrize("tree", [None, NODES], ids=["chain", "tree"])
def test_a_real_drafter_gives_the_dynamic_output_at_every_budget(
    target: HybridTarget, plain: Plain, tree: int | None
) -> None:
    bound, prompt = bind(NETWORKS["dflash"]().float(), target, "drafter"), PROMPTS[1]
    engine = static(target)
    for budget in range(1, DRAFTS + 4):
        drafter = bound.new_drafter(Drafting(drafts=DRAFTS, tree=tree))
        events = decoded(engine, drafter, prompt, Sampling(max_tokens=budget))
        assert ids_of(events) == plain[prompt][0][:budget]


@pytest.mark.parametrize("sampling", [
    Sampling(max_tokens=TOKENS, temperature=0.8, seed=5),
    Sampling(max_tokens=TOKENS, frequency_penalty=0.9, repetition_penalty=1.2),
], ids=["sampled", "penalties"])  # fmt: skip
def test_choices_of_the_host_commit_the_same_states(target: HybridTarget, sampling: Sampling) -> None:
    for seed, prompt in enumerate(PROMPTS[1:3]):
        base = decoded(dynamic(target), NoDrafter(), prompt, sampling, capture=True)
        known = {prompt: ids_of(base)}
        for drafter in (
            RandomTrees(known, VOCAB, seed, NODES),
            ScriptedDrafter(Script(known[prompt], VOCAB, 1), 7),
        ):
            events = decoded(static(target), drafter, prompt, sampling, capture=True)
            assert ids_of(events) == ids_of(base)
            assert events[-1].logits_sha256 == base[-1].logits_sha256


def test_a_stop_inside_a_path_leaves_no_trace_in_the_next_request(target: HybridTarget, plain: Plain) -> None:
    bound, prompt = bind(NETWORKS["dflash"]().float(), target, "drafter"), PROMPTS[1]
    ids = plain[prompt][0]
    engine = static(target, (ids[9],), ahead=1)
    grove = GroveDrafter(
        bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), Grove(ids, VOCAB, 2, CPU), prompt
    )
    expected = ids[: ids.index(ids[9]) + 1]
    for _ in range(2):
        assert ids_of(decoded(engine, grove, prompt, Sampling(max_tokens=TOKENS))) == expected


def forgetful(memory: delta.DeltaMemory, log: delta.DeltaLog, path: Tensor, kept: Tensor) -> None:
    delta.replay(memory, log, path, kept - 1)


def from_the_row_before(
    mixer: object,
    inputs: DeltaInputs,
    plan: delta.DeltaPlan,
    memory: delta.DeltaMemory,
    log: delta.DeltaLog,
    layer: int,
) -> Tensor:
    rows = delta.chain_plan(len(plan.above), plan.windows.shape[1], CPU)
    return delta.recur(mixer, inputs, rows, memory, log, layer)  # type: ignore[arg-type]


BROKEN: dict[str, delta.DeltaKernels] = {
    "one row too few is kept": TORCH_DELTA._replace(replay=forgetful),
    "a row starts from the one before, not from its parent": TORCH_DELTA._replace(recur=from_the_row_before),
}


@pytest.mark.parametrize("kernels", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_seen(
    target: HybridTarget, plain: Plain, kernels: delta.DeltaKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the tests."""
    prompt = PROMPTS[1]
    ids, logits = plain[prompt]
    bound = bind(NETWORKS["dflash"]().float(), target, "drafter")
    monkeypatch.setattr(static_hybrid, "delta_kernels_for", lambda device, dtype: kernels)
    grove = GroveDrafter(
        bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES)), Grove(ids, VOCAB, 1, CPU), prompt
    )
    events = decoded(static(target), grove, prompt, Sampling(max_tokens=TOKENS), capture=True)
    assert events[-1].logits_sha256 != logits


def test_the_probe_tries_chains_and_trees(target: HybridTarget) -> None:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU)))
    found = probe_lanes(lanes.narrowed(1), lanes, trees=True)
    assert (found.row_invariant, found.shapes) == (True, (8, 16))


def test_rows_are_committed_once(target: HybridTarget) -> None:
    lanes = Lanes(target, CAPACITY, Static(8, Graphs(CPU)))
    lanes.checking(()).verify((1, 2), 0)
    lanes.cache.commit(0, 1)
    with pytest.raises(ValueError, match="1 rows to commit, and none ran since the last commit"):
        lanes.cache.commit(0, 1)


def test_the_windows_of_a_tree_are_those_of_its_paths() -> None:
    """Three inputs in front of the anchor, then every row's own way."""
    turn = trees.new_tree_turn(6, 4, CPU)
    turn.parents.copy_(torch.tensor([-1, 0, 0, 1, 3, 4]))
    trees.lay(turn)
    plan = delta.tree_plan(turn.depths, turn.paths, turn.parents, 4)
    assert plan.above.tolist() == [0, 1, 1, 2, 4, 5]
    assert plan.windows.tolist() == [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [1, 2, 3, 5],
        [2, 3, 4, 6],
        [3, 4, 6, 7],
        [4, 6, 7, 8],
    ]
    chain = delta.chain_plan(3, 4, CPU)
    assert chain.above.tolist() == [0, 1, 2]
    assert chain.windows.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


def in_wy(target: HybridTarget, ahead: int | None = None) -> Decoder:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU), ahead=ahead)).dense()
    return Decoder(target.dense_trees(), (), text_of, CAPACITY, lanes=lanes)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_wy_form_keeps_states_as_accepted_too(
    target: HybridTarget, plain: Plain, tree: bool, ahead: int
) -> None:
    """Not bit-exact: near ties apart the ids are those of the recurrence, and logits are not."""
    bound = bind(NETWORKS["dflash"]().float(), target, "drafter")
    engine, accepted, others = in_wy(target, ahead), set(), 0
    for seed, prompt in enumerate(PROMPTS):
        ids, logits = plain[prompt]
        drafter: Drafter
        if tree:
            inner = bound.new_drafter(Drafting(drafts=DRAFTS, tree=NODES))
            drafter = GroveDrafter(inner, Grove(ids, VOCAB, seed, CPU), prompt)
        else:
            script = Script(ids, VOCAB, seed)
            drafter = ScriptedStatic(bound.new_drafter(Drafting(drafts=DRAFTS)), script, prompt)
        events = decoded(engine, drafter, prompt, Sampling(max_tokens=TOKENS), capture=not ahead)
        assert ids_of(events) == ids
        others += not ahead and events[-1].logits_sha256 != logits
        accepted |= {event.accepted for event in events}
    assert accepted >= {0, 1, 2, 3}
    assert ahead or others > 0


def test_the_wy_form_shares_the_cache_and_nothing_else(target: HybridTarget) -> None:
    lanes = Lanes(target, CAPACITY, Static(ROWS, Graphs(CPU)))
    dense = lanes.dense()
    assert dense.cache is lanes.cache
    assert dense.driving((), None) is not lanes.driving((), None)
    assert dense.driving((), None) is lanes.dense().driving((), None)
    assert dense.about == f"{lanes.about}, recurrent layers in the WY form"


def test_the_wy_form_takes_64_rows_of_recurrent_targets(target: HybridTarget) -> None:
    wide = Lanes(target, CAPACITY, Static(72, Graphs(CPU)))
    with pytest.raises(TargetError, match="give a `tree` of at most 63"):
        wide.dense()
    plain = small_target(CPU, torch.float32)
    with pytest.raises(TargetError, match="is for recurrent layers"):
        Lanes(plain, CAPACITY, Static(8, Graphs(CPU))).dense()
