"""A loaded DFlash as a fused program, where the kernels for it run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from reference_mechanisms.drafters.dflash import DFlash, Head
from reference_mechanisms.drafters.fused_block import FusedBlock, Weights, take_weights
from reference_mechanisms.drafters.rounding import eight_of
from reference_mechanisms.kernels.step.choice import TORCH, kernels_for
from reference_mechanisms.kernels.weight12.eight import EightMatrices
from reference_mechanisms.targets.matrices import Matrices, PlainMatrices
from reference_mechanisms.weight12.raw_matrices import RawMatrices


class NetworkTensors:
    """The tensors of a network that is loaded, as `matrices.Source`."""

    def __init__(self, network: nn.Module) -> None:
        """Take a network; its tensors are shared where their type stays."""
        self.folder = Path(type(network).__name__)
        self._state = network.state_dict()

    def __contains__(self, name: str) -> bool:
        """Whether the network has a tensor of this name."""
        return name in self._state

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor, converted.

        Raises:
            ValueError: it has another shape.
        """
        found: Tensor = self._state[name]
        if tuple(found.shape) != shape:
            raise ValueError(f"{self.folder}: {name} has shape {tuple(found.shape)}, not {shape}")
        return found.to(dtype)

    def refuse_unused(self, ignore: Iterable[str], parts: Iterable[str] = ()) -> None:
        """A network may have more, such as an embedding of its own."""
        del ignore, parts


def fusable(network: nn.Module) -> bool:
    """Whether a network is a plain DFlash on a device that has the kernels."""
    if type(network) is not DFlash or network.vocabulary is not None:
        return False
    weight = network.fc.weight
    return kernels_for(weight.device, weight.dtype, network.config.sizes.head_dim) is not TORCH


def fused_program(network: DFlash, embed: Head, head: Head, drafts: int, positions: int) -> FusedBlock:
    """The program of a loaded network; its weights are copied into the order of the kernels.

    Args:
        network: on its device.
        embed: ids to states.
        head: normed states to logits, over the target's whole vocabulary.
        drafts: tokens of a draft.
        positions: most that are absorbed or drafted from.
    """
    return FusedBlock(network_weights(network), embed, head, drafts, positions)


def network_weights(network: DFlash) -> Weights:
    """Of a loaded network, copied into the order of the kernels."""
    source, weight, eight = NetworkTensors(network), network.fc.weight, eight_of(network.fc)
    matrices: Matrices
    if eight is not None:
        matrices = EightMatrices(source, eight, weight.dtype, weight.device)
    elif weight.dtype == torch.bfloat16:
        matrices = RawMatrices(source, weight.device)
    else:
        matrices = PlainMatrices(source, weight.dtype, weight.device)
    with torch.inference_mode():
        return take_weights(network.config, source, matrices, weight.dtype, weight.device)
