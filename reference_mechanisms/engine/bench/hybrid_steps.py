"""Steps of a hybrid target under dummy weights: chains and trees, the recurrence beside the WY form.

A round is what a single request's step is when the host decides: a draft is loaded, the recorded step runs,
its report is read, and some rows are committed. No drafter runs. Beside it the recurrent part of one layer
alone, and the commit of all of them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.graphs import Graphs, Program
from reference_mechanisms.engine.lanes import Lanes, Static
from reference_mechanisms.kernels.step.delta import (
    DeltaKernels,
    DeltaPlan,
    chain_plan,
    new_log,
    new_memory,
    tree_plan,
)
from reference_mechanisms.kernels.step.tree_choice import (
    delta_kernels_for,
    dense_delta_kernels_for,
)
from reference_mechanisms.kernels.step.trees import lay, new_tree_turn
from reference_mechanisms.targets.delta_memory import NumberBytes, verify_memory
from reference_mechanisms.targets.gated_delta import DeltaInputs, DeltaMixer, DeltaSizes, DeltaWeights
from reference_mechanisms.targets.hybrid import HybridTarget

Form = Literal["recurrence", "wy"]
FORMS: tuple[Form, ...] = ("recurrence", "wy")
Clock = Callable[[], int]  # nanoseconds
INSIDE = 8  # launches in one recorded program of a layer, so that their own time shows
KEPT = 6  # rows that a round commits, at most


class Case(NamedTuple):
    """What is verified."""

    name: str
    rows: int  # the anchor among them
    parents: tuple[int, ...] | None = None  # row in front of each row, -1 for the anchor; None: a chain

    @property
    def path(self) -> tuple[int, ...]:
        """Rows that a round commits: the way to the deepest row, or its beginning."""
        if self.parents is None:
            return tuple(range(min(self.rows, KEPT)))
        ways = (way_to(self.parents, row) for row in range(self.rows))
        return max(ways, key=len)[:KEPT]


def way_to(parents: Sequence[int], row: int) -> tuple[int, ...]:
    """Rows from the anchor to a row."""
    found = [row]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How it is timed."""

    context: int  # committed positions in front of the first round
    rounds: int
    seed: int = 0


def tree_of(rows: int, seed: int, levels: int = 16) -> tuple[int, ...]:
    """A tree with a deep spine and siblings about it, as a drafter of blocks gives them."""
    rng = random.Random(f"tree {rows} {seed}")  # noqa: S311 - no secret
    spine = min(levels, max(1, rows // 2))
    parents = [-1, *range(min(spine, rows - 1))]
    depths = list(range(len(parents)))
    while len(parents) < rows:
        parent = rng.choice([row for row, depth in enumerate(depths) if depth < spine])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return tuple(parents)


def cases(seed: int) -> tuple[Case, ...]:
    """One row, chains of 8 and 16, trees of 16, 32 and 64 rows."""
    chains = [Case(f"chain of {rows} rows", rows) for rows in (8, 16)]
    trees = [Case(f"tree of {rows} rows", rows, tree_of(rows, seed)) for rows in (16, 32, 64)]
    return (Case("autoregressive", 1), *chains, *trees)


def step_times(target: HybridTarget, load: Load, clock: Clock) -> Iterator[dict[str, Any]]:
    """Times of whole rounds, one case and form after the other.

    Raises:
        TargetError: steps or caches do not fit the device.
    """
    positions = load.context + (load.rounds + 2) * KEPT
    rng = random.Random(f"ids {load.seed}")  # noqa: S311 - no secret
    vocabulary = target.config.vocab_size
    prompt = tuple(rng.randrange(vocabulary) for _ in range(load.context))
    for case in cases(load.seed):
        lanes = Lanes(target, positions, Static(case.rows, Graphs(target.device)))
        for form in FORMS:
            mine = lanes.dense() if form == "wy" else lanes
            ids = tuple(rng.randrange(vocabulary) for _ in range(case.rows))
            verify = _verifier(mine, case, ids)
            mine.prefill(prompt, ())
            times = []
            for number in range(-2, load.rounds):  # the first ones warm up
                began = clock()
                verify(mine.cache.length(0))
                mine.cache.commit_path(0, case.path)
                _finished(target.device)
                if number >= 0:
                    times.append((clock() - began) / 1e6)
            yield {"case": case.name, "form": form, "steps": lanes.about, "step_ms": spread(times)}


def layer_times(
    sizes: DeltaSizes, layers: int, dtype: torch.dtype, device: torch.device, load: Load, clock: Clock
) -> Iterator[dict[str, Any]]:
    """Times of the recurrent part of one layer, and of the commit of all.

    Args:
        sizes: of a recurrent layer.
        layers: recurrent ones.
        dtype: to compute in.
        device: to compute on.
        load: how often.
        clock: tells nanoseconds.
    """
    kernels: dict[Form, DeltaKernels] = {
        "recurrence": delta_kernels_for(device, dtype),
        "wy": dense_delta_kernels_for(device, dtype),
    }
    mixer, graphs = _mixer(sizes, dtype, device, load.seed), Graphs(device)
    memory = new_memory(sizes, layers, dtype, device)
    for case in cases(load.seed):
        inputs, plan = _inputs(sizes, case.rows, dtype, device, load.seed), _plan(case, sizes.kernel, device)
        log = new_log(sizes, layers, case.rows, dtype, device)
        path = torch.tensor(case.path, device=device)
        kept = torch.tensor([len(case.path)], device=device)
        for form, one in kernels.items():

            def recur(one: DeltaKernels = one, inputs: DeltaInputs = inputs, plan: DeltaPlan = plan) -> None:
                for _ in range(INSIDE):
                    one.recur(mixer, inputs, plan, memory, log, 0)  # noqa: B023 - run before the next case

            def replay(one: DeltaKernels = one) -> None:
                one.replay(memory, log, path, kept)  # noqa: B023

            times = _timed(graphs.program(recur), load.rounds, device, clock)
            commits = _timed(graphs.program(replay), load.rounds, device, clock)
            yield {
                "case": case.name,
                "form": form,
                "layer_ms": spread([one / INSIDE for one in times]),
                "commit_ms": spread(commits),
            }
        for part in memory:
            part.zero_()


def memory_of(sizes: DeltaSizes, layers: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Bytes that taking back drafts costs a request: a state behind every row, and the stash."""
    number = NumberBytes(key=4, value=dtype.itemsize, raw=dtype.itemsize)
    found = []
    for case in cases(0):
        memory = verify_memory(sizes, layers, case.rows, number)
        found.append({"case": case.name, **memory._asdict()})
    return found


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, rounded to a tenth of a microsecond."""
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return {
        "median": round(statistics.median(times), 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def _verifier(lanes: Lanes, case: Case, ids: tuple[int, ...]) -> Callable[[int], object]:
    if case.parents is None:
        chains = lanes.checking(())
        return lambda start: chains.verify(ids, start)
    trees, parents = lanes.checking_trees(()), case.parents
    return lambda start: trees.verify(ids, parents, start)


def _plan(case: Case, kernel: int, device: torch.device) -> DeltaPlan:
    if case.parents is None:
        return chain_plan(case.rows, kernel, device, bits=True)
    turn = new_tree_turn(case.rows, case.rows - 1, device)
    turn.parents.copy_(torch.tensor(case.parents))
    lay(turn)
    return tree_plan(turn.depths, turn.paths, turn.parents, kernel, bits=True)


def _mixer(sizes: DeltaSizes, dtype: torch.dtype, device: torch.device, seed: int) -> DeltaMixer:
    normal = _normal(device, seed)
    weights = DeltaWeights(
        convolution=normal(sizes.kernel, sizes.channels),
        log_a=normal(sizes.value_heads).to(dtype),
        dt_bias=normal(sizes.value_heads).to(dtype),
        norm=normal(sizes.value_dim).to(dtype),
    )
    return DeltaMixer(sizes, weights, 1e-6)


def _inputs(sizes: DeltaSizes, rows: int, dtype: torch.dtype, device: torch.device, seed: int) -> DeltaInputs:
    normal = _normal(device, seed + 1)
    shapes = ((sizes.channels,), (sizes.value_heads, sizes.value_dim), (sizes.value_heads,))
    return DeltaInputs(*(normal(rows, *shape).to(dtype) for shape in (*shapes, shapes[-1])))


def _normal(device: torch.device, seed: int) -> Callable[..., Tensor]:
    made = torch.Generator().manual_seed(seed)
    return lambda *shape: (0.3 * torch.randn(shape, generator=made)).to(device)


@torch.inference_mode()
def _timed(program: Program, rounds: int, device: torch.device, clock: Clock) -> list[float]:
    """Milliseconds of each round; some more go before them to warm up."""
    times = []
    for number in range(-2, rounds):
        _finished(device)
        began = clock()
        program()
        _finished(device)
        if number >= 0:
            times.append((clock() - began) / 1e6)
    return times


def _finished(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
