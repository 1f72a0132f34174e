"""Gated DeltaNet over a tree at once: the ancestor-masked WY form, beside the recurrence of `gated_delta`.

With G_i the sum of log decays on the path to row i, and sums over ancestors j of i inside the tree,

    S_i     = e^G_i S_0 + sum_{j, i} e^(G_i - G_j) k_j delta_j^T
    delta_i = beta_i (v_i - e^G_i S_0^T k_i - sum_j e^(G_i - G_j) (k_i.k_j) delta_j)

so that all rows are dense products with one root state and a substitution down the levels of the tree. Rows
that do not stand one above the other are zeros in the mask. A commit is one update of the rank of the path.
Source: the same form is published for trees as TreeWY (arXiv 2608.20961); chains have the causal mask.

**Not bit-exact**: sums are taken in another order than one after another, so outputs differ from those of the
recurrence by rounding, and by the way in which a text was cut into steps. What keeps that small:

1. Decays are exponents of sums over the segment between two rows, masked before the exponent: siblings would
   have positive ones, and the quotient of two exponents overflows.
2. A segment's sum is taken over its own rows, not as a difference of two long sums.
3. The system is solved by substitution; an inverse by repeated squaring loses digits in deep trees.
4. Products are float32 throughout, never in the ten-bit type of tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.gated_delta import (
    STATE_TYPE,
    DeltaInputs,
    DeltaMixer,
    DeltaState,
    check_parents,
    gated_norm,
    unit_length,
)

CHUNK = 64  # rows of a chain that are run at once; a tree is never cut
REMEMBERED = 8  # trees whose masks are kept: those of the requests of one forward


class Plan(NamedTuple):
    """What the layers of one forward share."""

    ancestors: Tensor  # [n, n]: 1 where the column's row is on the way to the row, itself included
    windows: Tensor  # [n, kernel]: rows of the convolution's window and the inputs, the oldest first
    levels: tuple[Tensor, ...]  # rows of each depth, int64


class Solved(NamedTuple):
    """What a tree of rows reads and writes."""

    read: Tensor  # [key_heads, repeats, n, value_dim]
    delta: Tensor  # as `read`


class DenseStash(NamedTuple):
    """What a commit needs of n rows, no state."""

    key: Tensor  # [key_heads, n, key_dim]
    delta: Tensor  # [key_heads, repeats, n, value_dim]
    log_decay: Tensor  # [key_heads, repeats, n]
    raw: Tensor  # [n, channels]

    def after(self, state: DeltaState, path: Sequence[int]) -> DeltaState:
        """The state behind a path of rows, each the parent of the next."""
        rows = torch.tensor(path, device=self.raw.device)
        decays = self.log_decay[..., rows]
        later = torch.cat((decays[..., 1:], torch.zeros_like(decays[..., :1])), dim=-1)
        behind = later.flip(-1).cumsum(-1).flip(-1)  # of all rows behind each
        written = self.key[:, None, rows] * behind.exp()[..., None]
        memory = state.memory * decays.sum(-1).exp()[..., None, None]
        memory = memory + written.transpose(-1, -2) @ self.delta[..., rows, :]
        window = torch.cat((state.window, self.raw[rows]))[len(rows) :]
        return DeltaState(memory, window)


def plan_of(parents: Sequence[int], kernel: int, device: torch.device, dtype: torch.dtype) -> Plan:
    """Masks, windows and levels of a tree.

    Args:
        parents: of each row, another row before it or -1 for the root.
        kernel: positions that the convolution sees.
        device: of the rows.
        dtype: of the masks.

    Raises:
        ValueError: a parent does not stand in front of its row.
    """
    count = len(parents)
    check_parents(parents, count)
    seen = torch.eye(count, dtype=torch.bool)
    depths: list[int] = []
    windows: list[list[int]] = []
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
        depths.append(0 if parent < 0 else depths[parent] + 1)
        window: list[int] = []
        at = row
        while len(window) < kernel:
            # Behind the root come the state's inputs, the newest of them last in the window.
            window.append(at + kernel - 1)
            at = parents[at] if at >= 0 else at - 1
        windows.append(window[::-1])
    levels = [
        torch.tensor([row for row in range(count) if depths[row] == depth]) for depth in sorted({*depths})
    ]
    return Plan(
        seen.to(device, dtype),
        torch.tensor(windows, device=device),
        tuple(level.to(device) for level in levels),
    )


class Spelled(NamedTuple):
    """Rows of a layer as the solver takes them, in the state's type."""

    query: Tensor  # [key_heads, n, key_dim], of unit length over the root of key_dim
    key: Tensor  # as `query`, of unit length
    value: Tensor  # [key_heads, repeats, n, value_dim]
    beta: Tensor  # [key_heads, repeats, n]
    log_decay: Tensor  # as beta


Substitute = Callable[[Tensor, Tensor], Tensor]  # (L, right side) -> x of (I + L) x = right side


def spell(mixer: DeltaMixer, inputs: DeltaInputs, seen: Tensor) -> Spelled:
    """Convolution, unit lengths, strengths and decays of some rows.

    Args:
        mixer: of the layer.
        inputs: of n rows.
        seen: raw inputs in the window of each row, [n, kernel, channels].
    """
    sizes, count = mixer.sizes, len(inputs.raw)
    mixed = F.silu((seen * mixer.weights.convolution).sum(1).to(inputs.raw.dtype))
    query, key, value = torch.split(mixed, [sizes.keys, sizes.keys, sizes.values], dim=1)
    heads = (count, sizes.key_heads, sizes.value_heads // sizes.key_heads)
    unit = (count, sizes.key_heads, sizes.key_dim)
    log_decay = mixer.rate * F.softplus(inputs.a.float() + mixer.weights.dt_bias)
    return Spelled(
        query=unit_length(query.view(unit)).transpose(0, 1) / sizes.key_dim**0.5,
        key=unit_length(key.view(unit)).transpose(0, 1),
        value=value.view(*heads, sizes.value_dim).movedim(0, 2).to(STATE_TYPE),
        beta=inputs.b.sigmoid().to(STATE_TYPE).view(heads).movedim(0, -1),
        log_decay=log_decay.to(STATE_TYPE).view(heads).movedim(0, -1),
    )


def solve(memory: Tensor, rows: Spelled, ancestors: Tensor, substitute: Substitute) -> Solved:
    """All rows of a tree from one root.

    Args:
        memory: S_0, [key_heads, repeats, key_dim, value_dim].
        rows: of the tree.
        ancestors: as in `Plan`.
        substitute: solves the system of the tree.
    """
    query, key, value, beta, log_decay = rows
    strict = ancestors - torch.eye(len(ancestors), dtype=ancestors.dtype, device=ancestors.device)
    segment = (ancestors * log_decay[..., None, :]) @ (1 - ancestors).T
    decay = segment.masked_fill(ancestors == 0, 0.0).exp() * ancestors  # e^(G_i - G_j)
    whole = (ancestors @ log_decay[..., None]).exp()  # e^G_i, [..., n, 1]
    keys, queries = key[:, None], query[:, None]
    overlap = beta[..., None] * strict * decay * (keys @ keys.transpose(-1, -2))
    delta = substitute(overlap, beta[..., None] * (value - whole * (keys @ memory)))
    read = whole * (queries @ memory) + (decay * (queries @ keys.transpose(-1, -2))) @ delta
    return Solved(read, delta)


def by_levels(levels: Sequence[Tensor]) -> Substitute:
    """Substitution down the levels of a tree.

    Args:
        levels: as in `Plan`.
    """

    def substitute(overlap: Tensor, right: Tensor) -> Tensor:
        delta = torch.zeros_like(right)
        for number, rows in enumerate(levels):
            mine = right[..., rows, :]
            delta[..., rows, :] = mine - overlap[..., rows, :] @ delta if number else mine
        return delta

    return substitute


class Plans:
    """The trees of the forward that is running; shared by the layers of a target."""

    def __init__(self) -> None:
        """None yet."""
        self._found: dict[tuple[int, ...], Plan] = {}

    def of(self, parents: Sequence[int], kernel: int, device: torch.device) -> Plan:
        """As `plan_of`, made once for all layers."""
        key = tuple(parents)
        if key not in self._found:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            self._found[key] = plan_of(parents, kernel, device, STATE_TYPE)
        return self._found[key]


class DenseDeltaMixer:
    """The recurrent part of one layer, whole trees at once; `gated_delta.DeltaForm`."""

    def __init__(self, recurrence: DeltaMixer, plans: Plans) -> None:
        """Compute what `recurrence` computes, with its weights.

        Raises:
            TargetError: float32 products are set to be rounded to fewer bits.
        """
        if torch.get_float32_matmul_precision() != "highest":
            raise TargetError(
                "the WY form needs float32 products: leave torch.set_float32_matmul_precision at 'highest'"
            )
        self._layer, self._plans = recurrence, plans

    def verify(
        self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]
    ) -> tuple[Tensor, DenseStash]:
        """As in `DeltaForm`; chains longer than `CHUNK` rows are run piece by piece."""
        count = len(inputs.raw)
        if count <= CHUNK or list(parents) != list(range(-1, count - 1)):
            return self._block(root, inputs, parents)
        outputs, stashes, state = [], [], root
        for start in range(0, count, CHUNK):
            piece = DeltaInputs(*(part[start : start + CHUNK] for part in inputs))
            chain = range(-1, len(piece.raw) - 1)
            output, stash = self._block(state, piece, chain)
            state = stash.after(state, range(len(piece.raw)))
            outputs.append(output)
            stashes.append(stash)
        key, delta, log_decay, raw = zip(*stashes, strict=True)
        joined = DenseStash(torch.cat(key, 1), torch.cat(delta, 2), torch.cat(log_decay, 2), torch.cat(raw))
        return torch.cat(outputs), joined

    def _block(
        self, root: DeltaState, inputs: DeltaInputs, parents: Sequence[int]
    ) -> tuple[Tensor, DenseStash]:
        layer = self._layer
        plan = self._plans.of(parents, layer.sizes.kernel, inputs.raw.device)
        rows = spell(layer, inputs, torch.cat((root.window, inputs.raw))[plan.windows])
        solved = solve(root.memory, rows, plan.ancestors, by_levels(plan.levels))
        read = solved.read.movedim(2, 0).reshape(inputs.z.shape).to(inputs.raw.dtype)
        output = gated_norm(read, inputs.z, layer.weights.norm, layer.eps)
        return output.flatten(1), DenseStash(rows.key, solved.delta, rows.log_decay, inputs.raw)
