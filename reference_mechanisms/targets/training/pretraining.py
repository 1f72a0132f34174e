"""Next-token training of a small hybrid target on chats, each sequence beginning where a chat begins.

On a GPU a whole step, optimizer and all, is recorded once as a CUDA graph and replayed: the network is small,
and launching its kernels one by one takes longer than running them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.drafters.training.corpus import Corpus
from reference_mechanisms.drafters.training.optimizing import Mover, Optimizing, share_of
from reference_mechanisms.targets.training.network import HybridNetwork
from reference_mechanisms.targets.training.plan import Pretraining

TRIAL = 24  # steps whose time tells how many fit
WARM_UPS = 3  # eager steps in front of a recording; their effect is taken back
RESERVE = 0.97  # of the time given


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Of a training curve: the mean since the point before."""

    step: int
    loss: float  # nats a token


def draw(corpus: Corpus, spec: Pretraining, seed: int, step: int) -> np.ndarray:
    """Token ids [sequences, positions + 1] of a step: a chat and those behind it, cut at the length."""
    starts, needed = corpus.starts(), spec.positions + 1
    usable = int(np.searchsorted(starts, len(corpus.token_ids) - needed, side="right"))
    begins = starts[np.random.default_rng((seed, step)).integers(0, max(1, usable), spec.sequences)]
    index = (begins[:, None] + np.arange(needed)) % len(corpus.token_ids)
    found: np.ndarray = corpus.token_ids[index].astype(np.int64)
    return found


class Learner:
    """One network and what moves it."""

    def __init__(self, network: HybridNetwork, spec: Pretraining) -> None:
        """The network lies where it will be trained, in float32."""
        self.network = network
        rates = Optimizing(learning_rate=spec.learning_rate, muon_rate=spec.muon_rate)
        self.mover = Mover(network.named_parameters(), rates)
        self.device = self.mover.share.device
        self.sums = torch.zeros(2, device=self.device)  # steps, losses

    def learn(self, token_ids: Tensor) -> None:
        """Move the network by the loss on [sequences, positions + 1]."""
        cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            logits = self.network.logits(self.network(token_ids[:, :-1]).hidden)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), token_ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.mover.step()
        self.network.zero_grad(set_to_none=True)
        self.sums += torch.stack((torch.ones_like(loss), loss.detach()))

    def tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        return [*self.network.parameters(), *self.mover.tensors().values(), self.sums]

    def point(self, step: int) -> LossPoint:
        """Take the mean since the last one."""
        steps, losses = self.sums.tolist()
        self.sums.zero_()
        return LossPoint(step, losses / max(steps, 1))


def pretrain(
    network: HybridNetwork,
    corpus: Corpus,
    spec: Pretraining,
    seed: int,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    *,
    recorded: bool = True,
) -> Iterator[tuple[LossPoint, int]]:
    """Train; yields points of the curve and the number of steps that will be done in all.

    Args:
        network: moved in place.
        corpus: of chats.
        spec: how.
        seed: of the batches.
        seconds: fewer steps are done than planned if those would take longer; the first ones tell how long.
        clock: seconds.
        recorded: replay steps as a CUDA graph, on a GPU.
    """
    began = clock()
    one, steps = Learner(network, spec), spec.steps

    def batch(step: int) -> Tensor:
        return torch.from_numpy(draw(corpus, spec, seed, step))

    def learn(token_ids: Tensor) -> None:
        one.learn(token_ids.to(one.device))

    move: Callable[[Tensor], None] = learn
    if recorded and one.device.type == "cuda":
        move = _recorded(one, batch(0))
    tried = clock()
    step = 0
    while step < steps:
        one.mover.share.fill_(share_of(step, steps, spec.warmup))
        move(batch(step))
        step += 1
        if step == TRIAL and seconds is not None:
            if one.device.type == "cuda":
                torch.cuda.synchronize()
            each = (clock() - tried) / TRIAL
            left = RESERVE * seconds - (clock() - began)
            steps = min(steps, max(TRIAL + 1, TRIAL + int(left / each)))
        if step % max(1, steps // spec.points) == 0 or step == steps:
            yield one.point(step), steps


def _recorded(one: Learner, like: Tensor) -> Callable[[Tensor], None]:
    given = like.to(one.device)
    kept = [tensor.detach().clone() for tensor in one.tensors()]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            one.learn(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.learn(given)
    for tensor, before in zip(one.tensors(), kept, strict=True):
        tensor.detach().copy_(before)

    def replay(token_ids: Tensor) -> None:
        given.copy_(token_ids.pin_memory(), non_blocking=True)
        graph.replay()

    return replay
