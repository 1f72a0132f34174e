"""A loaded drafter in eight bits: rounded once, however it runs afterwards.

Only its own products are rounded; embedding and head are the target's, or stay as they are. A network keeps
the bytes and scales of each product beside the weights that they stand for, so that the fused program on a
GPU reads the same bytes.
"""

from __future__ import annotations

import torch
from torch import nn

from reference_mechanisms.kernels.weight12.eight import restored, rounded
from reference_mechanisms.kernels.weight12.schedule import Eight

STEPS, SCALES = "steps", "scales"
KINDS: dict[torch.dtype, Eight] = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


@torch.inference_mode()
def round_weights(network: nn.Module, eight: Eight) -> None:
    """Round every product of a network but the head, where it lies.

    Args:
        network: loaded, in its type and on its device.
        eight: how.
    """
    for name, part in network.named_modules():
        if isinstance(part, nn.Linear) and name != "lm_head":
            found = rounded(part.weight, eight)
            part.register_buffer(STEPS, found.steps)
            part.register_buffer(SCALES, found.scales)
            part.weight = nn.Parameter(restored(found).to(part.weight.dtype), requires_grad=False)


def eight_of(product: nn.Linear) -> Eight | None:
    """How a product of a network was rounded; None: it was not."""
    steps = getattr(product, STEPS, None)
    return None if steps is None else KINDS[steps.dtype]
