"""A trained hybrid target as the teacher of its drafter: hidden states of texts, and texts of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from reference_mechanisms.drafters.training.teacher import Seen, Teacher, load_teacher
from reference_mechanisms.targets.config import read_json
from reference_mechanisms.targets.hybrid_config import HYBRIDS
from reference_mechanisms.targets.training.network import HybridNetwork, Past
from reference_mechanisms.targets.training.storing import load_network
from reference_mechanisms.targets.training.vocabulary import END_ID

THIN_EVERY = 32  # columns between two looks at which sequences have ended


class HybridTeacher:
    """What `drafters.training.teacher.Teacher` is for dense targets."""

    def __init__(self, network: HybridNetwork) -> None:
        """Take a network without gradients."""
        self.network, self.config = network, network.config
        weight = network.embed_tokens.weight
        self.embedding, self.dtype, self.device = weight, weight.dtype, weight.device
        self.head = weight
        self.final_norm = 1.0 + network.norm.weight.float()

    @torch.no_grad()
    def forward(self, token_ids: Tensor, taps: Sequence[int] = ()) -> Seen:
        """As `Teacher.forward` without a cache."""
        found = self.network(token_ids, taps)
        tapped = torch.cat(found.taps, dim=-1) if taps else found.hidden[..., :0]
        return Seen(found.hidden, tapped)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of rows of `Seen.hidden`."""
        return self.network.logits(hidden)


AnyTeacher = Teacher | HybridTeacher


def load_any_teacher(folder: Path, dtype: torch.dtype, device: torch.device) -> AnyTeacher:
    """Load a dense target, or a hybrid one that `storing.store_target` wrote.

    Raises:
        TargetError: the folder is no complete checkpoint of a known layout.
    """
    if any(name in HYBRIDS for name in read_json(folder / "config.json").get("architectures") or []):
        return HybridTeacher(load_network(folder, dtype, device))
    return load_teacher(folder, dtype, device)


@torch.no_grad()
def write_greedily(
    network: HybridNetwork,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    together: int,
    tell: Callable[[int], None] = lambda _done: None,
) -> list[tuple[int, ...]]:
    """The greedy text behind each prompt, the end token included where one came.

    Args:
        network: writes.
        prompts: token ids.
        new_tokens: of each text, at most.
        together: sequences at once; those of like length run together.
        tell: told how many prompts are done.
    """
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    written: dict[int, tuple[int, ...]] = {}
    for begin in range(0, len(order), together):
        chosen = order[begin : begin + together]
        texts = _together(network, [prompts[number] for number in chosen], new_tokens)
        written |= dict(zip(chosen, texts, strict=True))
        tell(len(written))
    return [written[number] for number in range(len(prompts))]


def _together(
    network: HybridNetwork, prompts: Sequence[Sequence[int]], new_tokens: int
) -> list[tuple[int, ...]]:
    weight = network.embed_tokens.weight
    longest = max(len(prompt) for prompt in prompts)
    padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    first = torch.tensor([longest - len(prompt) for prompt in prompts], device=weight.device)
    past = Past(network.config, first, longest + new_tokens, weight.dtype)
    texts = torch.full((len(prompts), new_tokens), -1, dtype=torch.int64, device=weight.device)
    alive = torch.arange(len(prompts), device=weight.device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=weight.device)
    rows = torch.tensor(padded, device=weight.device)
    for column in range(new_tokens):
        chosen = network.logits(network(rows, past=past).hidden[:, -1]).argmax(-1)
        texts[alive, column] = torch.where(ended, -1, chosen)
        ended = ended | (chosen == END_ID)
        if (column + 1) % THIN_EVERY == 0:
            left = (~ended).nonzero().squeeze(1)
            if not len(left):
                break
            alive, ended, chosen = alive[left], ended[left], chosen[left]
            past.keep(left)
        rows = chosen[:, None]
    return [tuple(token for token in text if token >= 0) for text in texts.tolist()]
