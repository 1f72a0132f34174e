"""Traces of trees: each step follows the path that its trace tells, as far as the tree holds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from reference_mechanisms.batching.bench import own, running
from reference_mechanisms.batching.bench.replaying_trees import TracedChildren, worths_of
from reference_mechanisms.batching.bench.resident import SHARED, TREES, Parts, Resident
from reference_mechanisms.batching.settings import BatchSettings
from reference_mechanisms.batching.traces.format import TRACES, Attempt, Siblings, Trace, acceptance_length
from reference_mechanisms.batching.traces.imposing import Imposed, impose
from reference_mechanisms.errors import MechanismError
from reference_mechanisms.targets.hybrid import HybridTarget
from reference_mechanisms.targets.llama import LlamaTarget
from reference_mechanisms.verification.growing import grow, trees_of
from reference_mechanisms.verification.tree import ANCHOR
from tests.reference_mechanisms.batching.bench import small
from tests.reference_mechanisms.batching.bench.test_running import drafter_weights, parse
from tests.reference_mechanisms.batching.tables import staircase
from tests.reference_mechanisms.engine.bench import small as tiny

NODES = 9
SIBLINGS = Siblings(shares=(0.6, 0.3), off_spine=0.4)
RECORDING, TRACED = impose(
    Imposed(
        lengths={small.DRAFTS: 2.5},
        requests=small.REQUESTS,
        prompt=small.PROMPT,
        tokens=small.TOKENS,
        spread=1.5,
        siblings=SIBLINGS,
    )
)


def parts(target: LlamaTarget | HybridTarget | None = None) -> Parts:
    target = target or tiny.target(torch.device("cpu"), torch.float32)
    sized = own.Sized(small.SLOTS, small.PROMPT + small.TOKENS, small.DRAFTS)
    costs = staircase(small.SLOTS, NODES, row=0.3)
    return own.recorded_parts(target, drafter_weights(target), sized, costs, NODES)


def probability(worths: Sequence[Sequence[float]], ranks: Sequence[int]) -> float:
    """Of a path of ranks: less behind a token that is not the best."""
    found, spine = 1.0, True
    for depth, rank in enumerate(ranks):
        found *= worths[depth][rank] * (1.0 if spine else SIBLINGS.off_spine)
        spine = spine and rank == 0
    return found


def held(attempt: Attempt, limit: int) -> int:
    """Accepted nodes of a step: by the probability of every path of ranks, the best of all."""
    levels = min(small.DRAFTS, limit)
    worths = worths_of(attempt, SIBLINGS, small.DRAFTS)
    ranks = range(1 + len(SIBLINGS.shares))
    paths = [path for depth in range(1, levels + 1) for path in itertools.product(ranks, repeat=depth)]
    # As trees are grown: the more probable, the shallower, the child of the earlier parent.
    best = sorted(paths, key=lambda path: (-round(probability(worths, path), 12), len(path), path))
    tree = set(best[:NODES])
    told = attempt.ranks[:levels]
    return max((n for n in range(1, len(told) + 1) if told[:n] in tree), default=0)


def steps_with_trees(trace: Trace) -> Iterator[int]:
    emitted = 1
    while emitted < trace.tokens:
        accepted = held(trace.attempts[emitted - 1], trace.tokens - emitted - 1)
        yield accepted
        emitted += accepted + 1


def test_each_step_accepts_what_its_tree_holds_of_the_path() -> None:
    engine = Resident(parts(), RECORDING, TRACED)
    plain = BatchSettings(slots=1, prefill_rows=4, buckets=True)
    found = engine.serve(TREES, plain, small.REQUESTS)
    expected = [accepted for trace in TRACED for accepted in steps_with_trees(trace)]
    assert found.tokens == small.REQUESTS * small.TOKENS
    assert (found.steps, found.accepted) == (len(expected), sum(expected))
    chains = engine.serve("nothing", plain, small.REQUESTS)
    assert found.acceptance_length is not None
    assert chains.acceptance_length is not None
    assert found.acceptance_length > chains.acceptance_length  # what siblings are worth


@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_shared_trees_are_exact_and_verify_no_more_than_the_budget(
    hybrid: bool, request: pytest.FixtureRequest
) -> None:
    if hybrid:
        request.getfixturevalue("short_pieces")
    engine = Resident(parts(small.hybrid() if hybrid else None), RECORDING, TRACED)
    plan = running.Plan(
        requests={small.SLOTS: small.REQUESTS},
        full={small.SLOTS: small.settings()},
        variants=(TREES, SHARED),
        repeats=1,
        exact=4,
    )
    found = running.run(engine, plan, lambda ran, said: None)
    assert found.exact == (4 * small.TOKENS, 0)
    trees, shared = found.timed
    assert (trees.variant, shared.variant) == (TREES, SHARED)
    assert trees.drafted is not None
    assert shared.drafted is not None
    assert 0 < shared.drafted < trees.drafted


def test_engine_and_traces_must_have_trees() -> None:
    target = tiny.target(torch.device("cpu"), torch.float32)
    sized = own.Sized(small.SLOTS, small.PROMPT + small.TOKENS, small.DRAFTS)
    bare = Resident(own.recorded_parts(target, drafter_weights(target), sized, None), RECORDING, TRACED)
    assert not {TREES, SHARED} & set(bare.variants(small.settings()))
    with pytest.raises(MechanismError, match="no variant 'trees'"):
        bare.serve(TREES, small.settings(), 1)
    engine = Resident(parts()._replace(costs=None), *small.traces())
    assert TREES in engine.variants(small.settings())
    assert SHARED not in engine.variants(small.settings())
    with pytest.raises(MechanismError, match="make them with --siblings"):
        engine.serve(TREES, small.settings(), 1)


@pytest.mark.parametrize(("nodes", "told"), [("65", True), ("-1", True), ("4", False)])
def test_the_command_takes_trees_of_traces_that_tell_siblings(tmp_path: Path, nodes: str, told: bool) -> None:
    path = tmp_path / "traces.json"
    TRACES.write(path, *((RECORDING, TRACED) if told else small.traces()))
    words = ["bench", str(path), "--concurrency", "2", "--per-slot", "2", "--out", str(tmp_path)]
    options = parse([*words, "--tree", nodes])
    with pytest.raises(MechanismError, match="--tree takes 1 to 64 nodes"):
        options.run(options)


def test_lists_are_worth_no_more_further_down() -> None:
    found = worths_of(Attempt(0, (0.9, 0.2)), SIBLINGS, 2)
    assert found == [pytest.approx([0.9, 0.06, 0.03]), pytest.approx([0.2, 0.2, 0.2])]
    assert acceptance_length(TRACED, small.DRAFTS) == pytest.approx(2.5, rel=0.1)


def test_paths_are_worth_what_the_calibration_of_their_lists_says() -> None:
    """Less behind a token that is not the best, in each request by its own lists."""
    attempts = Attempt(0, (0.6, 0.5, 0.4)), Attempt(0, (0.3, 0.7, 0.2))
    worths = [worths_of(one, SIBLINGS, 3) for one in attempts]
    lists = torch.tensor([[[10, 11, 12], [20, 21, 22], [10, 30, 31]]] * 2)
    branching = TracedChildren(lists, torch.tensor(worths).log(), SIBLINGS.off_spine)
    trees = trees_of(grow(branching, torch.tensor([1, 1]), budget=14, depths=(3, 3)))
    for tree, one in zip(trees, worths, strict=True):
        ranks: list[tuple[int, ...]] = []
        for token, parent in zip(tree.token_ids, tree.parents, strict=True):
            above = () if parent == ANCHOR else ranks[parent]
            ranks.append((*above, lists[0, len(above)].tolist().index(token)))
        expected = [probability(one, path) for path in ranks]
        assert tree.path_probabilities == pytest.approx(expected, rel=1e-5)
        assert any(path[0] for path in ranks if len(path) > 1)
    assert trees[0].token_ids != trees[1].token_ids
