"""`Linear12`: a linear layer that keeps its weight packed, in plain torch, on any device.

The reference for the kernels: it decodes the whole weight and calls `F.linear`, so its result is
bitwise that of the bf16 layer. It saves memory between calls, not time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference_mechanisms.weight12.encode import encode
from reference_mechanisms.weight12.layout import CLASSES, GROUP, HALF, RAW_ROW, Packed, groups


class Linear12(nn.Module):
    """y = x W^T + b, W [out_features, in_features] stored at 12 bits a weight."""

    lo: Tensor
    code: Tensor
    pidx: Tensor
    ptab: Tensor
    rawrow: Tensor
    rawval: Tensor
    bias: Tensor | None

    def __init__(self, packed: Packed, bias: Tensor | None = None) -> None:
        """Take a packed matrix, its arrays copied.

        Args:
            packed: of shape [out_features, in_features].
            bias: [out_features], or None.

        Raises:
            ValueError: the packed tensor is no matrix.
        """
        super().__init__()
        if len(packed.shape) != 2:
            raise ValueError(f"a linear layer has a matrix, not a tensor of shape {packed.shape}")
        self.out_features, self.in_features = packed.shape
        for suffix, array in packed.arrays():
            self.register_buffer(suffix, torch.from_numpy(array.copy()))  # whole numbers: no cast moves them
        self.register_buffer("bias", bias)

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
        return cls(encode(weight.view(torch.uint16).numpy()), bias).to(linear.weight.device)

    def weight(self) -> Tensor:
        """W [out_features, in_features] in bf16, decoded anew."""
        rows, q = self.out_features, groups(self.in_features)
        numbers = torch.where(self.pidx == RAW_ROW, 0, self.pidx).long()
        palettes = self.ptab[numbers.reshape(-1)].reshape(rows, q, CLASSES)
        pair = self.code.reshape(rows, q, HALF)
        nibbles = torch.cat((pair & 0x0F, pair >> 4), dim=2)  # [N, Q, 64]
        classes = palettes.gather(2, (nibbles & 7).long())
        high = (nibbles & 8) << 4 | classes
        octets = torch.stack((self.lo.reshape(rows, q, GROUP), high), dim=3)  # little endian
        decoded = octets.reshape(rows, -1).view(torch.bfloat16)[:, : self.in_features]
        decoded[self.rawrow.long()] = self.rawval.view(torch.bfloat16)
        return decoded.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """[..., out_features] of x [..., in_features]."""
        return F.linear(x, self.weight(), self.bias)
