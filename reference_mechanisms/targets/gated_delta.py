"""Gated DeltaNet: a layer whose memory is a matrix per head and the last inputs of a convolution.

Source: Gated Delta Networks (arXiv 2412.06464), in the form of Qwen3-Next and Qwen3.5: a depthwise
causal convolution and SiLU over queries, keys and values; queries and keys of unit length; each key
head serving consecutive value heads; the state in float32; a root-mean-square norm over each value
head, gated by SiLU of z. With state S [key_dim, value_dim], decay e^g and write strength beta

    S' = e^g S        delta = beta (v - S'^T k)        S_new = S' + k delta^T        o = S_new^T q

Rows are computed one after another with the same operations on the same shapes, whether a row is a
step of its own, a draft token or part of a prompt. So its bits do not depend on what runs with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

LENGTH_EPS = 1e-6  # of the unit length; no config names it
STATE_TYPE = torch.float32


class DeltaSizes(NamedTuple):
    """`linear_num_key_heads` and its siblings in a config.json."""

    key_heads: int
    value_heads: int  # a multiple of key_heads
    key_dim: int  # of a head
    value_dim: int  # of a head
    kernel: int  # positions that the convolution sees

    @property
    def keys(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Channels of all values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """What the convolution runs over: queries, keys, values."""
        return 2 * self.keys + self.values


class DeltaWeights(NamedTuple):
    """Of one layer, without the matrix products around it."""

    convolution: Tensor  # [kernel, channels], the oldest position first, at least float32
    log_a: Tensor  # [value_heads], `A_log`
    dt_bias: Tensor  # [value_heads]
    norm: Tensor  # [value_dim]


class DeltaInputs(NamedTuple):
    """What the input projections give for n rows, in the target's type."""

    raw: Tensor  # [n, channels]: queries, keys, values before the convolution
    z: Tensor  # [n, value_heads, value_dim]: gates of the output
    b: Tensor  # [n, value_heads]: write strength before the sigmoid
    a: Tensor  # [n, value_heads]: what the decay is made of


class DeltaState(NamedTuple):
    """Everything a sequence leaves behind in one layer."""

    memory: Tensor  # [key_heads, value_heads / key_heads, key_dim, value_dim], float32
    window: Tensor  # [kernel - 1, channels]: raw inputs, the oldest first, in the target's type


class Write(NamedTuple):
    """What one row, or each of n rows, writes into the memory; with n rows in front of every shape."""

    key: Tensor  # [key_heads, key_dim], float32, of unit length
    value: Tensor  # [key_heads, value_heads / key_heads, value_dim], in the target's type
    beta: Tensor  # [key_heads, value_heads / key_heads], float32
    log_decay: Tensor  # g, as beta


class Stash(NamedTuple):
    """What replaying n rows needs: their writes and raw inputs, no state."""

    writes: Write
    raw: Tensor  # [n, channels]

    def after(self, state: DeltaState, path: Sequence[int]) -> DeltaState:
        """The state behind a path of rows, by `replay`."""
        return replay(state, self, path)


class Committable(Protocol):
    """What a form leaves of n rows, so that some of them can be committed."""

    def after(self, state: DeltaState, path: Sequence[int]) -> DeltaState:
        """The state behind a path of rows, each the parent of the next, the first one's being `state`."""
        ...


class DeltaForm(Protocol):
    """A way to compute one layer over a tree of rows: `DeltaMixer`, or `delta_wy.DenseDeltaMixer`."""

    def verify(
        self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]
    ) -> tuple[Tensor, Committable]:
        """Run n rows, each from the state of its parent; the root is left as it is.

        Args:
            root: committed state.
            inputs: of n rows, a parent before its children.
            parents: of each row, another row or -1 for the root.

        Returns:
            Outputs [n, value_heads x value_dim], and what a commit needs.

        Raises:
            ValueError: a parent does not stand in front of its row.
        """
        ...


def empty_state(sizes: DeltaSizes, dtype: torch.dtype, device: torch.device) -> DeltaState:
    """The state of a sequence without tokens."""
    heads = (sizes.key_heads, sizes.value_heads // sizes.key_heads)
    memory = torch.zeros((*heads, sizes.key_dim, sizes.value_dim), dtype=STATE_TYPE, device=device)
    return DeltaState(memory, torch.zeros((sizes.kernel - 1, sizes.channels), dtype=dtype, device=device))


class DeltaMixer:
    """The recurrent part of one layer; it holds no sequence."""

    def __init__(self, sizes: DeltaSizes, weights: DeltaWeights, eps: float) -> None:
        """Take weights.

        Args:
            sizes: of the layer.
            weights: of the layer.
            eps: of the output norm.
        """
        self.sizes, self.weights, self.eps = sizes, weights, eps
        self.rate = -weights.log_a.float().exp()  # of the decay, [value_heads]

    def verify(self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]) -> tuple[Tensor, Stash]:
        """As in `DeltaForm`; states live only until the last child of their row has run."""
        check_parents(parents, len(inputs.raw))
        last_child = {parent: row for row, parent in enumerate(parents)}
        states = {-1: root}
        outputs, writes = [], []
        for row, parent in enumerate(parents):
            output, write, states[row] = self.step(states[parent], _one(inputs, row))
            outputs.append(output)
            writes.append(write)
            for done in (parent, row):
                if last_child.get(done, -1) <= row:
                    del states[done]
        stacked = Write(*(torch.stack(parts) for parts in zip(*writes, strict=True)))
        return torch.stack(outputs), Stash(stacked, inputs.raw)

    def step(self, state: DeltaState, row: DeltaInputs) -> tuple[Tensor, Write, DeltaState]:
        """One row behind a state: its output [value_heads x value_dim], what it writes, and the next state.

        Args:
            state: in front of the row; left as it is.
            row: its inputs, as in `DeltaInputs` without the rows in front.
        """
        sizes = self.sizes
        seen = torch.cat((state.window, row.raw[None]))
        mixed = F.silu((seen * self.weights.convolution).sum(0).to(row.raw.dtype))
        query, key, value = torch.split(mixed, [sizes.keys, sizes.keys, sizes.values])
        heads = (sizes.key_heads, sizes.value_heads // sizes.key_heads)
        write = Write(
            key=unit_length(key.view(sizes.key_heads, sizes.key_dim)),
            value=value.view(*heads, sizes.value_dim),
            beta=row.b.sigmoid().to(STATE_TYPE).view(heads),
            log_decay=(self.rate * F.softplus(row.a.float() + self.weights.dt_bias))
            .to(STATE_TYPE)
            .view(heads),
        )
        memory = written(state.memory, write)
        query = unit_length(query.view(sizes.key_heads, sizes.key_dim)) / sizes.key_dim**0.5
        read = (memory * query[:, None, :, None]).sum(-2).to(row.raw.dtype)
        output = gated_norm(read.view(row.z.shape), row.z, self.weights.norm, self.eps)
        return output.flatten(), write, DeltaState(memory, seen[1:])


def replay(state: DeltaState, stash: Stash, path: Sequence[int]) -> DeltaState:
    """The state behind some rows, from their stash: bitwise the one that `verify` saw there.

    Args:
        state: the root that the rows were verified from.
        stash: of the rows.
        path: rows to commit, each the parent of the next.
    """
    memory = state.memory
    for row in path:
        memory = written(memory, Write(*(part[row] for part in stash.writes)))
    raws = [stash.raw[row : row + 1] for row in path]
    return DeltaState(memory, torch.cat((state.window, *raws))[len(raws) :])


def written(memory: Tensor, write: Write) -> Tensor:
    """The memory after one row's write; the given one is left as it is."""
    key = write.key[:, None, :, None]
    decayed = memory * write.log_decay.exp()[..., None, None]
    known = (decayed * key).sum(-2)
    delta = (write.value.to(STATE_TYPE) - known) * write.beta[..., None]
    return decayed + key * delta.unsqueeze(-2)


def check_parents(parents: Sequence[int], rows: int) -> None:
    """Hold that parents make a tree in topological order.

    Raises:
        ValueError: naming the first row that does not fit.
    """
    if len(parents) != rows:
        raise ValueError(f"{len(parents)} parents for {rows} rows")
    wrong = next((row for row, parent in enumerate(parents) if not -1 <= parent < row), None)
    if wrong is not None:
        raise ValueError(f"row {wrong} has parent {parents[wrong]}; a parent stands in front of its row")


def _one(inputs: DeltaInputs, row: int) -> DeltaInputs:
    return DeltaInputs(*(part[row] for part in inputs))


def unit_length(x: Tensor) -> Tensor:
    """Heads [..., dim] of unit length, in the state's type."""
    wide = x.to(STATE_TYPE)
    return wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + LENGTH_EPS)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of heads [..., value_dim], then times SiLU of the gate; rounds where stock does."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * normed.to(x.dtype) * F.silu(gate.float())).to(x.dtype)
