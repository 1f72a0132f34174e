from __future__ import annotations

import pytest
import torch

from reference_mechanisms.drafters.dspark import MarkovKind
from reference_mechanisms.drafters.picking import Drawing, Picker
from tests.reference_mechanisms.drafters.networks import HIDDEN, VOCAB, dspark, ends


def rows(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, HIDDEN, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_each_token_is_chosen_under_the_bias_of_the_one_before(kind: MarkovKind) -> None:
    network, head = dspark(kind=kind), ends().head
    x, anchors = rows(), torch.tensor([5, 11])
    drafted = network.draft(x, anchors, head, Picker([Drawing("r", 0.0, 0, 0)] * 2, VOCAB))
    assert drafted.confidence_logits is not None
    markov, confidence = network.markov_head, network.confidence_head
    assert confidence is not None
    first, second = markov.markov_w1.weight, markov.markov_w2.weight
    for request, anchor in enumerate(anchors.tolist()):
        token, state = anchor, torch.zeros(5, dtype=torch.float64)
        for k in range(3):
            row, embedded = x[request, k], first[token]
            sure = confidence.proj.weight[0] @ torch.cat((row, embedded)) + confidence.proj.bias[0]
            assert abs(float(sure) - float(drafted.confidence_logits[request, k])) < 1e-12
            mixed = embedded
            if kind == "gated":
                assert markov.gate_proj is not None
                mixed = torch.sigmoid(markov.gate_proj(torch.cat((row, embedded)))) * embedded
            if kind == "rnn":
                assert markov.joint_proj is not None
                z = markov.joint_proj(torch.cat((state, embedded, row)))
                gate, new, out = z[:5].sigmoid(), z[5:10].tanh(), z[10:]
                state, mixed = gate * state + (1 - gate) * new, out.tanh()
            token = int((head(row) + second @ mixed).argmax())
            assert int(drafted.token_ids[request, k]) == token


def test_a_confidence_does_not_see_its_own_draft() -> None:
    network, head = dspark(), ends().head
    x, anchors = rows(), torch.tensor([5, 11])

    def confidences(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        picker = Picker([Drawing("r", 3.0, seed + n, 0) for n in range(2)], VOCAB)
        drafted = network.draft(x, anchors, head, picker)
        assert drafted.confidence_logits is not None
        return drafted.token_ids, drafted.confidence_logits

    tokens, sure = confidences(0)
    others, unsure = confidences(100)
    assert not torch.equal(tokens[:, 0], others[:, 0])
    assert torch.equal(sure[:, 0], unsure[:, 0])
    assert not torch.equal(sure[:, 1], unsure[:, 1])
