from __future__ import annotations

import itertools

import torch

from reference_mechanisms.drafters.dflash2 import BlockConvolution
from reference_mechanisms.drafters.picking import Drawing, Picker
from tests.reference_mechanisms.drafters.networks import HIDDEN, VOCAB, dflash2, ends, randomised


def rows(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, HIDDEN, generator=generator, dtype=torch.float64)


def greedy(requests: int = 2) -> Picker:
    return Picker([Drawing("r", 0.0, 0, 0)] * requests, VOCAB)


def test_the_convolution_mixes_each_row_with_the_one_before_it_in_the_block() -> None:
    convolution = randomised(lambda: BlockConvolution(HIDDEN, 2, 4))
    x = rows(5)
    found = convolution(x, lambda entered: entered * 2.0)
    for block, row, channel in itertools.product(range(2), range(5), range(HIDDEN)):

        def mixed(
            side: int, at: int, values: torch.Tensor, block: int = block, channel: int = channel
        ) -> float:
            delta = convolution.kernel_projection(x[block, at]).view(2, 2, HIDDEN // 4)
            total = 0.0
            for back in range(2):
                if at - back >= 0:
                    kernel = convolution.base_kernel[side, back, channel] + delta[side, back, channel // 4]
                    total += float(kernel * values[at - back])
            return total

        entered = torch.tensor([mixed(0, at, x[block, :, channel]) for at in range(5)], dtype=torch.float64)
        assert abs(mixed(1, row, entered * 2.0) - float(found[block, row, channel])) < 1e-12


def test_a_new_convolution_changes_nothing() -> None:
    x = rows(4).float()
    assert torch.equal(BlockConvolution(HIDDEN, 2, 4)(x, torch.sin), x.sin())


def test_the_walk_adds_the_score_of_each_pair_to_the_logits_of_the_best_candidates() -> None:
    network, head = dflash2(candidates=4), ends().head
    x, anchors = rows(3), torch.tensor([5, 11])
    found = network.draft(x, anchors, head, greedy()).token_ids
    selector = network.candidate_selector
    for request, anchor in enumerate(anchors.tolist()):
        previous = anchor
        for k in range(3):
            logits = head(x[request, k])
            inside = sorted(range(VOCAB), key=lambda v: -float(logits[v]))[:4]
            pair = selector.predecessor_codebook[previous] * selector.hidden_projection(x[request, k])
            scores = {v: float(logits[v] + (pair * selector.successor_codebook[v]).sum()) for v in inside}
            previous = max(scores, key=lambda v: scores[v])
            assert int(found[request, k]) == previous


def test_a_draw_never_leaves_the_candidates() -> None:
    network, head = dflash2(candidates=3), ends().head
    picker = Picker([Drawing("r", 1.5, n, 0) for n in range(2)], VOCAB)
    x = rows(3)
    drafted = network.draft(x, torch.tensor([5, 11]), head, picker)
    for request in range(2):
        q = picker.probabilities(request, 3)
        assert q is not None
        for k in range(3):
            inside = set(head(x[request, k]).topk(3).indices.tolist())
            assert set(q[k].nonzero().flatten().tolist()) == inside
            assert int(drafted.token_ids[request, k]) in inside


def test_an_untrained_selector_is_plain_dflash() -> None:
    network, head = dflash2(), ends().head
    network.candidate_selector.successor_codebook.zero_()
    x = rows(3)
    found = network.draft(x, torch.tensor([5, 11]), head, greedy()).token_ids
    assert torch.equal(found, head(x).argmax(-1))
