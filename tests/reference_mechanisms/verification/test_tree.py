from __future__ import annotations

import pytest
import torch

from reference_mechanisms.verification.tree import DraftTree, ancestor_mask, chain, positions_of

#      anchor
#      0    2
#      1    4
#      3
TREE = DraftTree((5, 6, 7, 8, 6), (-1, 0, -1, 1, 2), (-0.1, -0.2, -0.9, -0.3, -0.4))


def test_depths_positions_and_paths_follow_the_parents() -> None:
    assert TREE.depths == (1, 2, 1, 3, 2)
    assert positions_of(TREE.parents, 10) == (10, 11, 12, 11, 13, 12)
    assert [TREE.path(node) for node in (3, 4, -1)] == [(0, 1, 3), (2, 4), ()]
    assert TREE.path_log_probabilities == pytest.approx((-0.1, -0.3, -0.9, -0.6, -1.3))
    assert len(TREE) == 5


def test_a_row_sees_its_own_path_and_no_sibling() -> None:
    seen = ancestor_mask(TREE.parents)
    for node in range(len(TREE)):
        rows = {0, *(one + 1 for one in TREE.path(node))}
        assert set(torch.nonzero(seen[node + 1]).flatten().tolist()) == rows
    assert seen[0].tolist() == [True, False, False, False, False, False]


def test_the_mask_of_a_chain_is_causal() -> None:
    tree = chain((4, 4, 4), (-1.0, -1.0, -1.0))
    assert torch.equal(ancestor_mask(tree.parents), torch.ones(4, 4, dtype=torch.bool).tril())
    assert positions_of(tree.parents, 3) == (3, 4, 5, 6)


def test_every_beginning_of_a_tree_is_one() -> None:
    for budget in range(len(TREE) + 1):
        assert TREE.first(budget).depths == TREE.depths[:budget]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(((1, 2), (-1,), (0.0, 0.0)), "2 `token_ids`, 1 `parents`", id="lengths"),
        pytest.param(((1, 2), (-1, 1), (0.0, 0.0)), r"`parents`\[1\] is 1", id="its own parent"),
        pytest.param(((1,), (-2,), (0.0,)), r"`parents`\[0\] is -2", id="padding"),
        pytest.param(((1, 3, 3), (-1, 0, 0), (0.0,) * 3), "3 stands twice behind node 0", id="twins"),
        pytest.param(((1,), (-1,), (0.1,)), r"`log_probabilities`\[0\] is 0.1", id="above 1"),
        pytest.param(((1,), (-1,), (float("nan"),)), "is nan; it is at most 0", id="no number"),
    ],
)
def test_what_is_no_tree_is_refused(
    fields: tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(*fields)
