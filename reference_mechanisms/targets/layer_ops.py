"""What lies between the matrix products of a decoder layer: norms, rotation, attention, the gate.

Rounds where stock rounds (norms in float32, products of the rotation before their sum, the SiLU
before its product), so that what is left of a difference is the order of sums inside a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from reference_mechanisms.targets.rope import rotate_


class LayerOps(Protocol):
    """Made for one forward: the positions of its rows and what each sees are known inside."""

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm of rows [rows, hidden]."""
        ...

    def add_norm(self, hidden: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of residual stream and a sublayer's output, and its norm, both [rows, hidden]."""
        ...

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """Norm and rotate queries and keys, write keys and values, attend.

        Args:
            layer: number of the layer.
            qkv: [rows, heads + 2 x kv_heads, head_dim]; may be overwritten.
            qk_norm: weights [heads + kv_heads, head_dim] of the norm per head, if there is one.

        Returns:
            [rows, heads x head_dim].
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half of the columns times the second half, [rows, inner]."""
        ...


class TorchOps:
    """In plain torch, on any device."""

    def __init__(
        self,
        eps: float,
        kv_heads: int,
        rotations: Tensor,
        attention: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Of one forward.

        Args:
            eps: of the norms.
            kv_heads: of the target; the last so many heads of qkv are values.
            rotations: of each row, [rows, 2, 1, head_dim].
            attention: (layer, rotated qkv) -> attended; it writes keys and values.
        """
        self._eps, self._kv_heads = eps, kv_heads
        self._rotations, self._attention = rotations, attention

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """As in `LayerOps`."""
        return rms_norm(hidden, weight, self._eps)

    def add_norm(self, hidden: Tensor, delta: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """As in `LayerOps`."""
        hidden = hidden + delta
        return hidden, rms_norm(hidden, weight, self._eps)

    def attend(self, layer: int, qkv: Tensor, qk_norm: Tensor | None) -> Tensor:
        """As in `LayerOps`."""
        rotated = qkv[:, : -self._kv_heads]
        if qk_norm is not None:
            rotated.copy_(rms_norm(rotated, qk_norm, self._eps))
        rotate_(rotated, self._rotations)
        return self._attention(layer, qkv)

    def gate(self, gate_up: Tensor) -> Tensor:
        """As in `LayerOps`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32 whatever the type, as stock does it."""
    wide = x.float()
    scale = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)
