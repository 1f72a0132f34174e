"""The training itself: one forward of the target serves all drafters that are trained together.

Target weights, embedding and head are frozen. Drafters learn in bfloat16 products over float32 weights. On
a GPU everything that one step does to one drafter is recorded once for each width of batch and replayed:
the networks are small, and launching their kernels one by one took longer than running them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.drafters.dflash import DFlash
from reference_mechanisms.drafters.eagle3 import Eagle3
from reference_mechanisms.drafters.training.batches import Drawn, Shape, batches
from reference_mechanisms.drafters.training.corpus import Corpus
from reference_mechanisms.drafters.training.forwards import Batch, trained_on
from reference_mechanisms.drafters.training.head_loss import Taught, taught_by
from reference_mechanisms.drafters.training.losses import Ends, loss_of, position_weights
from reference_mechanisms.drafters.training.optimizing import Mover, Optimizing, share_of
from reference_mechanisms.targets.training.teaching import AnyTeacher

_WARM_UPS = 3  # eager steps in front of a recording; their effect is taken back


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How training goes."""

    steps: int
    shape: Shape
    warmup: float = 0.04  # share of the steps
    gamma: float = 4.0  # of the position weights
    seed: int = 1

    def share(self, step: int) -> float:
        """Of the highest learning rate at a step, by `optimizing.share_of`."""
        return share_of(step, self.steps, self.warmup)


class Student:
    """A drafter that is being trained."""

    def __init__(
        self, name: str, model: DFlash | Eagle3, optimizing: Optimizing, soft_share: float = 0.0
    ) -> None:
        """The model lies where it will be trained, in float32.

        Args:
            name: of the drafter.
            model: its network.
            optimizing: how its weights are moved.
            soft_share: of the target's distribution in what it aims at; the written tokens have the rest.
        """
        self.name, self.model, self.soft_share = name, model, soft_share
        self.mover = Mover(model.named_parameters(), optimizing)
        device = self.mover.share.device
        self.sums = torch.zeros(3, device=device)  # steps, cross entropy, acceptance length

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs."""
        weights = {f"model.{name}": tensor for name, tensor in self.model.named_parameters()}
        return weights | {f"mover.{name}": tensor for name, tensor in self.mover.tensors().items()}


@dataclass(frozen=True, slots=True)
class Point:
    """Of a training curve: means since the point before."""

    step: int
    loss: float
    acceptance_length: float  # expected at temperature 0 on training texts, true tokens in front


def point(one: Student, step: int) -> Point:
    """Take the means since the last point."""
    steps, loss, length = one.sums.tolist()
    one.sums.zero_()
    return Point(step, loss / max(steps, 1), length / max(steps, 1))


def sizes(students: Sequence[Student]) -> Mapping[str, int]:
    """Weights of each."""
    return {one.name: sum(weight.numel() for weight in one.model.parameters()) for one in students}


def train(
    students: Sequence[Student],
    teacher: AnyTeacher,
    corpus: Corpus,
    schedule: Schedule,
    first: int = 0,
    stopped: Callable[[int], bool] = lambda _step: False,
) -> Iterator[int]:
    """Train step by step; yields the number of steps done after each.

    Args:
        students: trained on the same batches.
        teacher: the target.
        corpus: what on.
        schedule: how.
        first: steps already done; the batches go on from there.
        stopped: asked before each step whether to stop.
    """
    taps = tuple(sorted({tap for one in students for tap in trained_on(one.model)}))
    lesson = Lesson(teacher, taps, schedule.gamma, soft=any(one.soft_share for one in students))
    recorded: dict[tuple[int, ...], _Recorded] = {}
    drawn = batches(corpus, schedule.shape, schedule.seed, first, teacher.device)
    for step in range(first, schedule.steps):
        if stopped(step):
            return
        batch = next(drawn)
        for one in students:
            one.mover.share.fill_(schedule.share(step))
        if teacher.device.type == "cuda":
            shape = tuple(batch.token_ids.shape)
            if shape not in recorded:
                recorded[shape] = _Recorded(lesson, students, batch)
            recorded[shape].replay(batch)
        else:
            seen = lesson.look(batch)
            for one in students:
                lesson.teach(one, batch, seen)
        yield step + 1


class Seen(NamedTuple):
    """Of the target, on one batch."""

    taps: Tensor  # [sequences, positions, taps, hidden]
    taught: Taught | None  # of every draft


class Lesson:
    """What one step does."""

    def __init__(self, teacher: AnyTeacher, taps: tuple[int, ...], gamma: float, *, soft: bool) -> None:
        self._teacher, self._taps, self._gamma, self._soft = teacher, taps, gamma, soft
        self._ends = Ends(lambda ids: teacher.embedding[ids].float(), teacher.head)

    def look(self, batch: Drawn) -> Seen:
        """Run the target."""
        seen = self._teacher.forward(batch.token_ids, self._taps)
        taps = seen.taps.view(*batch.token_ids.shape, len(self._taps), -1)
        if not self._soft:
            return Seen(taps, None)
        drafts = batch.valid.shape[-1]
        last = batch.token_ids.shape[1] - 1
        at = batch.anchors[..., None] + torch.arange(drafts, device=batch.anchors.device)
        at = at.clamp_max(last).flatten(1)[..., None].expand(-1, -1, seen.hidden.shape[-1])
        rows = seen.hidden.gather(1, at).flatten(0, 1)  # the rows that chose the tokens to be drafted
        return Seen(taps, taught_by(self._teacher.logits(rows), 1.0))

    def teach(self, one: Student, batch: Drawn, seen: Seen) -> None:
        """Move one drafter."""
        mine = [self._taps.index(tap) for tap in trained_on(one.model)]
        tapped = torch.cat([seen.taps[..., tap, :] for tap in mine], dim=-1)
        weights = position_weights(batch.valid, self._gamma)
        taught = None
        if seen.taught is not None and one.soft_share:
            taught = seen.taught._replace(share=one.soft_share)
        with _mixed(tapped.device):
            blocks = Batch(batch.token_ids, tapped, batch.anchors)
            loss = loss_of(one.model, blocks, weights, self._ends, taught)
        loss.value.backward()  # type: ignore[no-untyped-call]
        one.mover.step()
        one.model.zero_grad(set_to_none=True)
        length = _expected_length(loss.hits, batch)
        one.sums += torch.stack((torch.ones_like(length), loss.cross_entropy.to(length.dtype), length))


class _Recorded:
    """The steps of all students on batches of one shape, as CUDA graphs."""

    def __init__(self, lesson: Lesson, students: Sequence[Student], like: Drawn) -> None:
        self._inputs = Drawn(
            token_ids=like.token_ids.clone(), anchors=like.anchors.clone(), valid=like.valid.clone()
        )
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        kept = [{name: tensor.detach().clone() for name, tensor in _all(one).items()} for one in students]
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                seen = lesson.look(self._inputs)
                for one in students:
                    lesson.teach(one, self._inputs, seen)
        torch.cuda.current_stream().wait_stream(side)
        self._graphs = [torch.cuda.CUDAGraph() for _ in range(len(students) + 1)]
        with torch.cuda.graph(self._graphs[0]):
            seen = lesson.look(self._inputs)
        self._seen = seen  # keeps the buffers that the other graphs read
        for graph, one in zip(self._graphs[1:], students, strict=True):
            with torch.cuda.graph(graph, pool=self._graphs[0].pool()):
                lesson.teach(one, self._inputs, seen)
        for one, before in zip(students, kept, strict=True):
            for name, tensor in _all(one).items():
                tensor.detach().copy_(before[name])

    def replay(self, batch: Drawn) -> None:
        self._inputs.token_ids.copy_(batch.token_ids)
        self._inputs.anchors.copy_(batch.anchors)
        self._inputs.valid.copy_(batch.valid)
        for graph in self._graphs:
            graph.replay()


def _all(one: Student) -> dict[str, Tensor]:
    return one.tensors() | {"sums": one.sums}


def _expected_length(hits: Tensor, batch: Drawn) -> Tensor:
    right = (hits & batch.valid).to(torch.int32).cumprod(-1).sum(-1)
    started = batch.valid[..., 0]
    return 1 + (right * started).sum() / started.sum().clamp_min(1)


def _mixed(device: torch.device) -> contextlib.AbstractContextManager[object]:
    if device.type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
    return contextlib.nullcontext()
