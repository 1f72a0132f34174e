"""Both ways of sampling with trees, by enumeration of everything that can happen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from reference_mechanisms.verification import tree_sampling
from reference_mechanisms.verification.tree import ANCHOR
from reference_mechanisms.verification.tree_sampling import (
    Chance,
    Walked,
    draw_siblings,
    follow_choices,
    reject_siblings,
)

Path = tuple[int, ...]
Table = Callable[[Path], Tensor]
VOCAB = 3


class Script:
    """Takes the decisions it is told, then the first possible ones; knows how likely all that was."""

    def __init__(self, told: Sequence[int]) -> None:
        self.told, self.taken, self.others, self.weight = told, [], [], 1.0  # type: ignore[var-annotated]

    def _decide(self, probabilities: Sequence[float]) -> int:
        possible = [n for n, one in enumerate(probabilities) if one > 0.0]
        at = len(self.taken)
        choice = self.told[at] if at < len(self.told) else possible[0]
        if at >= len(self.told):
            self.others += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(choice)
        self.weight *= probabilities[choice]
        return choice

    def accept(self, probability: float) -> bool:
        return self._decide([1.0 - probability, probability]) == 1

    def draw(self, probabilities: Tensor) -> int:
        assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
        return self._decide(probabilities.tolist())


def outcomes(run: Callable[[Chance], Path]) -> dict[Path, float]:
    """Every output with its exact probability."""
    found: dict[Path, float] = {}
    waiting: list[Sequence[int]] = [()]
    while waiting:
        script = Script(waiting.pop())
        output = run(script)
        found[output] = found.get(output, 0.0) + script.weight
        waiting += script.others
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    return found


def table(seed: int, vocab: int = VOCAB, *, zeros: bool = False) -> Table:
    """A distribution behind every path; with zeros, some tokens cannot come."""

    def found(path: Path) -> Tensor:
        made = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
        weights = torch.rand(vocab, generator=made, dtype=torch.float64) ** 2
        if zeros:
            weights[int(torch.randint(vocab, (1,), generator=made))] = 0.0
        return weights / weights.sum()

    return found


def difference(found: dict[Path, float], target: Table, length: int, vocab: int = VOCAB) -> float:
    """Largest error of the probability of a text, where the target itself goes on behind each output."""
    worst = 0.0
    for text in itertools.product(range(vocab), repeat=length):
        steps = [float(target(text[:n])[text[n]]) for n in range(length)]
        happened = sum(
            weight * math.prod(steps[len(output) :])
            for output, weight in found.items()
            if text[: len(output)] == output
        )
        worst = max(worst, abs(happened - math.prod(steps)))
    return worst


def fixed_tree(
    fans: Sequence[int], order: Callable[[Path], Sequence[int]]
) -> tuple[list[int], list[int], list[Path]]:
    """Token ids, parents and paths of a tree with so many children at each depth."""
    ids: list[int] = []
    parents: list[int] = []
    paths: list[Path] = [()]
    level = [ANCHOR]
    for fan in fans:
        below = []
        for parent in level:
            for token in order(paths[parent + 1])[:fan]:
                ids.append(token)
                parents.append(parent)
                paths.append((*paths[parent + 1], token))
                below.append(len(ids) - 1)
        level = below
    return ids, parents, paths


def emitted(walked: Walked, ids: Sequence[int]) -> Path:
    return (*(ids[row - 1] for row in walked.path[1:]), walked.next_token)


def best_first(q: Table) -> Callable[[Path], Sequence[int]]:
    return lambda path: q(path).sort(descending=True).indices.tolist()


FANS = [(1,), (2,), (3,), (1, 1, 1), (2, 1), (2, 2)]
TARGETS = {"full": table(1), "another": table(2), "with zeros": table(3, zeros=True)}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("fans", FANS, ids=str)
def test_the_output_along_choices_is_distributed_as_the_targets(target: Table, fans: tuple[int, ...]) -> None:
    ids, parents, paths = fixed_tree(fans, best_first(table(9)))
    found = outcomes(
        lambda chance: emitted(
            follow_choices(ids, parents, lambda path: chance.draw(target(paths[path[-1]]))), ids
        )
    )
    assert max(map(len, found)) == 1 + len(fans)
    assert difference(found, target, 1 + len(fans)) < 1e-12


def test_a_choice_among_the_children_alone_is_seen() -> None:
    """The mutant of this way: a draw that looks at the tree."""
    target = TARGETS["full"]
    ids, parents, paths = fixed_tree((2, 1), best_first(table(9)))

    def run(chance: Chance) -> Path:
        def choose(path: Sequence[int]) -> int:
            p = target(paths[path[-1]])
            mine = [ids[node] for node, parent in enumerate(parents) if parent + 1 == path[-1]]
            among = torch.zeros_like(p).index_copy_(0, torch.tensor(mine), p[mine]) if mine else p
            return chance.draw(among / among.sum())

        return emitted(follow_choices(ids, parents, choose), ids)

    assert difference(outcomes(run), target, 3) > 1e-2


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("fans", FANS, ids=str)
def test_rejection_of_certain_children_is_distributed_as_the_target(
    target: Table, fans: tuple[int, ...]
) -> None:
    ids, parents, paths = fixed_tree(fans, best_first(table(9)))
    rows = torch.stack([target(path) for path in paths])
    found = outcomes(
        lambda chance: emitted(reject_siblings(ids, parents, rows, [None] * len(rows), chance), ids)
    )
    assert difference(found, target, 1 + len(fans)) < 1e-12


def drawn_and_verified(target: Table, q: Table, fans: Sequence[int]) -> Callable[[Chance], Path]:
    """Draw a tree of fixed shape from q, and verify it."""

    def run(chance: Chance) -> Path:
        drawn: dict[Path, list[int]] = {}

        def children(path: Path) -> list[int]:
            drawn[path] = draw_siblings(q(path), fans[len(path)], chance)
            return drawn[path]

        ids, parents, paths = fixed_tree(fans, children)
        rows = torch.stack([target(path) for path in paths])
        return emitted(reject_siblings(ids, parents, rows, [q(path) for path in paths], chance), ids)

    return run


PROPOSALS = {"near": table(1), "far": table(7), "with zeros": table(8, zeros=True)}


@pytest.mark.parametrize("q", PROPOSALS.values(), ids=PROPOSALS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("fans", [(1,), (2,), (3,), (2, 1), (1, 2)], ids=str)
def test_rejection_of_drawn_siblings_is_distributed_as_the_target(
    target: Table, q: Table, fans: tuple[int, ...]
) -> None:
    found = outcomes(drawn_and_verified(target, q, fans))
    assert difference(found, target, 1 + len(fans)) < 1e-12


def test_a_chain_of_rejections_through_four_siblings_is_exact() -> None:
    target, q = table(4, 5), table(5, 5)
    found = outcomes(drawn_and_verified(target, q, (4,)))
    assert difference(found, target, 2, 5) < 1e-12
    assert any(len(output) == 1 for output in found)  # all four rejected


def test_siblings_are_accepted_more_often_than_one_child() -> None:
    target, q = table(1), table(7)
    kept = [
        sum(
            weight
            for output, weight in outcomes(drawn_and_verified(target, q, (fan,))).items()
            if len(output) == 2
        )
        for fan in (1, 2, 3)
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[1]
    assert kept[0] == pytest.approx(float(torch.minimum(target(()), q(())).sum()), abs=1e-12)


MUTANTS: dict[str, Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]] = {
    "the target keeps its mass": lambda p, q, token: (p, tree_sampling.without(q, token)),
    "the proposal keeps the token": lambda p, q, token: (_residual(p, q), q),
    "the rejected token alone is taken out": lambda p, q, token: (
        tree_sampling.without(p, token),
        tree_sampling.without(q, token),
    ),
}


def _residual(p: Tensor, q: Tensor) -> Tensor:
    left = torch.clamp(p - q, min=0.0)
    return left / left.sum()


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_rejection_is_seen(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
) -> None:
    monkeypatch.setattr(tree_sampling, "rejected", mutant)
    found = outcomes(drawn_and_verified(table(4, 4), table(5, 4), (3,)))
    assert difference(found, table(4, 4), 2, 4) > 1e-3


def test_a_tree_cut_by_what_was_drawn_is_biased() -> None:
    """Why drawn trees are not grown by probability: here a drawn child stays only if it is the likeliest."""
    target, q = table(1), table(7)

    def run(chance: Chance) -> Path:
        ids = [one for one in draw_siblings(q(()), 1, chance) if one == int(q(()).argmax())]
        rows = torch.stack([target(()), *(target((one,)) for one in ids)])
        parents = [ANCHOR] * len(ids)
        return emitted(reject_siblings(ids, parents, rows, [q(())] * len(rows), chance), ids)

    assert difference(outcomes(run), target, 2) > 1e-2


def test_children_are_drawn_without_replacement_and_no_more_than_there_are() -> None:
    found = outcomes(lambda chance: tuple(draw_siblings(torch.tensor([0.5, 0.0, 0.5]).double(), 3, chance)))
    assert found == {(0, 2): 0.5, (2, 0): 0.5}
