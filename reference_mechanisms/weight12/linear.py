"""`Linear12` and `Embedding12`: layers that keep their weight packed, drop-in for those of torch.

On a CPU they decode the whole weight, or the rows asked for, and go on as torch does: results are bitwise
those of the bf16 layers; memory is saved between calls, not time. On a CUDA device the kernels read the
packed weight itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_mechanisms.weight12 import planes, product
from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.layout import SUFFIXES, Packed
from reference_mechanisms.weight12.planes import Planes


class PackedModule(nn.Module):
    """A module whose buffers are the arrays of one packed matrix [rows, columns]."""

    lo: Tensor

    def __init__(self, matrix: Planes) -> None:
        """Keep the arrays: they are shared, not copied."""
        super().__init__()
        self._columns = matrix.columns
        self._made: tuple[Tensor, product.Stored] | None = None
        for suffix, array in matrix.arrays().items():
            self.register_buffer(suffix, array)  # whole numbers: no cast moves them

    def matrix(self) -> Planes:
        """The packed matrix."""
        return planes.from_arrays({suffix: getattr(self, suffix) for suffix in SUFFIXES}, self._columns)

    def _stored(self) -> product.Stored:
        """As the kernels of this device read it; made once, and again after the buffers were replaced."""
        if self._made is None or self._made[0] is not self.lo:
            self._made = (self.lo, product.store(self.matrix()))
        return self._made[1]

    @property
    def weight(self) -> Tensor:
        """The matrix in bf16, decoded anew."""
        return self.matrix().decode()


class Linear12(PackedModule):
    """y = x W^T + b, W [out_features, in_features] stored at 12 bits a weight."""

    bias: Tensor | None

    def __init__(self, matrix: Planes, bias: Tensor | None = None) -> None:
        """Take a packed matrix.

        Args:
            matrix: [out_features, in_features].
            bias: [out_features], or None.
        """
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.rows, matrix.columns
        if isinstance(bias, nn.Parameter):
            self.register_parameter("bias", bias)
        else:
            self.register_buffer("bias", bias)

    @classmethod
    def from_packed(cls, packed: Packed, bias: Tensor | None = None) -> Linear12:
        """A layer of an encoder's arrays.

        Raises:
            ValueError: the packed tensor is no matrix.
        """
        return cls(planes.from_packed(packed), bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Linear12:
        """The packed twin of a bf16 layer.

        Raises:
            ValueError: its weight is not bf16.
        """
        if linear.weight.dtype != torch.bfloat16:
            raise ValueError(f"weight12 packs bfloat16, not {linear.weight.dtype}")
        weight = linear.weight.detach().cpu().contiguous()
        bias = None if linear.bias is None else linear.bias.detach()
        return cls.from_packed(encode(weight.view(torch.uint16).numpy()), bias).to(linear.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """[..., out_features] of x [..., in_features]."""
        if x.device.type != "cuda":
            return F.linear(x, self.weight, self.bias)
        return product.linear(x, self._stored(), self.bias)


class Embedding12(PackedModule):
    """Rows of a matrix [num_embeddings, embedding_dim] stored at 12 bits a weight."""

    def __init__(self, matrix: Planes) -> None:
        """Take a packed matrix."""
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [..., embedding_dim] of ids [...]."""
        if ids.device.type != "cuda":
            return self.matrix().gather(ids)
        return product.embed(ids, self._stored())
