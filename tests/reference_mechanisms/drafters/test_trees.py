"""Trees of every drafter with weights: each node is worth what the drafter's chain says behind its path."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from reference_mechanisms.drafters import trained
from reference_mechanisms.drafters.loading import Network
from reference_mechanisms.drafters.picking import Picker
from reference_mechanisms.drafters.protocol import Wanted
from reference_mechanisms.drafters.scheduling import at_least
from reference_mechanisms.drafters.trained import Drafting, TrainedDrafter
from reference_mechanisms.verification.budgeting import Costs
from reference_mechanisms.verification.growing import Grown, trees_of
from reference_mechanisms.verification.tree import DraftTree
from tests.reference_mechanisms.drafters.networks import FULL, VOCAB, dspark, random_taps
from tests.reference_mechanisms.drafters.test_trained import NETWORKS as CHAINS
from tests.reference_mechanisms.drafters.test_trained import drafter_of, request

NETWORKS: dict[str, Callable[[int], Network]] = CHAINS | {
    "dspark, gated": lambda vocab: dspark(FULL, 3, vocab, kind="gated")
}
LENGTHS, DRAFTS, BUDGET = (1, 4, 9), 3, 60
RNG = random.Random(3)  # noqa: S311 - test data
TEXTS = [[RNG.randrange(VOCAB) for _ in range(20)] for _ in LENGTHS]


@pytest.fixture(params=list(NETWORKS.values()), ids=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> Network:
    made: Network = request.param(VOCAB)
    return made


def ready(network: Network, drafting: Drafting) -> tuple[TrainedDrafter, list[Wanted]]:
    """A drafter with three requests of unequal context, and what they ask for."""
    drafter = drafter_of(network, drafting)
    for slot, (text, length) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
        drafter.begin(slot, request(text[:length]))
        drafter.extend(slot, random_taps(length, seed=slot))
    wanted = [
        Wanted(slot, text[length : length + 1], DRAFTS)
        for slot, (text, length) in enumerate(zip(TEXTS, LENGTHS, strict=True))
    ]
    return drafter, wanted


def chain_says(
    network: Network, paths: Sequence[Sequence[int]], monkeypatch: pytest.MonkeyPatch
) -> list[list[float]]:
    """Log-probability of each token of a path of each request, by the drafter of chains, forced along it."""
    found: list[list[float]] = [[] for _ in paths]

    class Forced(Picker):
        def __call__(self, index: int, scores: Tensor, ids: Tensor) -> Tensor:
            chosen = super().__call__(index, scores, ids)
            logs = scores.double().log_softmax(-1)
            for row, path in enumerate(paths):
                if index < len(path):
                    column = ids.expand(scores.shape)[row].tolist().index(path[index])
                    found[row].append(float(logs[row, column]))
                    chosen[row] = path[index]
            return chosen

    monkeypatch.setattr(trained, "Picker", Forced)
    drafter, wanted = ready(network, Drafting(drafts=DRAFTS))
    drafter.propose(wanted)
    return found


def test_a_node_is_worth_what_the_chain_says_behind_its_path(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: list[list[DraftTree]] = []

    def kept(one: Grown) -> list[DraftTree]:
        grown.append(trees_of(one))
        return grown[-1]

    monkeypatch.setattr(trained, "trees_of", kept)
    drafter, wanted = ready(network, Drafting(drafts=DRAFTS, tree=BUDGET))
    proposals = drafter.propose(wanted)
    trees = grown[0]
    assert [(one.token_ids, one.parents) for one in proposals] == [
        (tree.token_ids, tree.parents) for tree in trees
    ]
    assert {len(tree) for tree in trees} <= {BUDGET, 2 + 4 + 8}  # two candidates a position: all of them
    assert min(max(tree.depths) for tree in trees) >= 2
    deep = [[node for node, depth in enumerate(tree.depths) if depth == max(tree.depths)] for tree in trees]
    for nth in range(0, BUDGET, 4):
        ends = [nodes[nth % len(nodes)] for nodes in deep]
        paths = [
            [tree.token_ids[one] for one in tree.path(end)] for tree, end in zip(trees, ends, strict=True)
        ]
        forced = chain_says(network, paths, monkeypatch)
        for tree, end, said in zip(trees, ends, forced, strict=True):
            own = [tree.log_probabilities[one] for one in tree.path(end)]
            assert own == pytest.approx(said, abs=1e-5)


def test_a_tree_leaves_no_trace_in_the_next_one(network: Network) -> None:
    drafter, wanted = ready(network, Drafting(drafts=DRAFTS, tree=BUDGET))
    first = drafter.propose(wanted)
    assert drafter.propose(wanted[::-1])[::-1] == first
    fresh, wanted = ready(network, Drafting(drafts=DRAFTS, tree=BUDGET))
    assert [fresh.propose([one])[0] for one in wanted] == first


def test_the_limit_of_a_request_is_the_depth_of_its_tree(network: Network) -> None:
    drafter, wanted = ready(network, Drafting(drafts=DRAFTS, tree=BUDGET))
    asked = [one._replace(limit=limit) for one, limit in zip(wanted, (0, 1, 2), strict=True)]
    proposals = drafter.propose(asked)
    assert [one.depth for one in proposals] == [0, 1, 2]


def test_a_budget_of_one_is_the_best_token(network: Network) -> None:
    tree, wanted = ready(network, Drafting(drafts=DRAFTS, tree=1))
    chain, _ = ready(network, Drafting(drafts=DRAFTS))
    assert [one.token_ids for one in tree.propose(wanted)] == [
        one.token_ids[:1] for one in chain.propose(wanted)
    ]


def test_a_tree_is_planted_on_the_device_unless_the_host_has_a_part_in_it(network: Network) -> None:
    tree = ready(network, Drafting(drafts=DRAFTS, tree=BUDGET))[0]
    chain = ready(network, Drafting(drafts=DRAFTS))[0]
    assert tree.nodes == BUDGET
    assert chain.nodes is None
    assert tree.key not in {None, chain.key}
    costs = Costs(0.0, {1: 1.0})
    assert ready(network, Drafting(drafts=DRAFTS, tree=BUDGET, costs=costs))[0].key is None
    with pytest.raises(ValueError, match="a drafter of chains plants no tree"):
        chain.planter(64)


@pytest.mark.parametrize("drafting", [{"sampled": True}, {"lengths": at_least(0.5)}])
def test_a_tree_of_drawn_tokens_or_of_unsure_depth_is_refused(drafting: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a `tree` holds the best tokens"):
        Drafting(drafts=3, tree=4, **drafting)  # type: ignore[arg-type]


def test_an_eagle3_tree_asks_for_the_children_of_ten_nodes_a_level_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = CHAINS["eagle3"](VOCAB)
    rows: list[int] = []
    forward = type(network).forward

    def counted(self: Network, features: Tensor, *others: object) -> Tensor:
        rows.append(features.shape[1] if features.ndim == 3 else 0)
        found: Tensor = forward(self, features, *others)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(type(network), "forward", counted)
    drafter, wanted = ready(network, Drafting(drafts=DRAFTS, tree=60))
    assert {len(one.token_ids) for one in drafter.propose(wanted)} == {60}
    assert rows == [0, 10, 10]  # the committed positions, then two levels
