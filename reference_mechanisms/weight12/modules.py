"""Packed layers in place of those of a transformers model, from a packed folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from reference_mechanisms.errors import TargetError
from reference_mechanisms.weight12.linear import Embedding12, Linear12
from reference_mechanisms.weight12.packed_checkpoint import PackedCheckpoint
from reference_mechanisms.weight12.planes import Planes


def replace_layers(model: nn.Module, folder: Path) -> list[str]:
    """Replace every linear layer and embedding whose weight is packed, and load all other tensors.

    Afterwards the model has the weights of the folder, whatever it had before. Tied layers share one packed
    matrix. The model must be in bf16, on the device where it shall run.

    Args:
        model: of the architecture of the folder, with the tensor names of its checkpoint.
        folder: that `weight12 pack` wrote.

    Returns:
        Names of the replaced layers.

    Raises:
        TargetError: names or shapes of folder and model differ.
        WeightError: the folder was changed.
    """
    checkpoint = PackedCheckpoint(folder)
    replaced: list[str] = []
    for parameter, names in _parameters(model):
        stored = [name for name in names if name in checkpoint]
        if not stored:
            raise TargetError(f"{folder}: tensor {names[0]} is missing; give the folder of this model")
        shape = tuple(parameter.shape)
        first, *copies = stored
        weight = checkpoint.take(first, shape, parameter.dtype)
        for copy in copies:
            if not torch.equal(checkpoint.take(copy, shape, parameter.dtype), weight):
                raise TargetError(f"{folder}: {copy} and {first} differ, but this model ties them")
        if checkpoint.packed(first):
            matrix = checkpoint.take_planes(first, *_matrix(first, shape)).to(parameter.device)
            for name in names:
                path = name.removesuffix(".weight")
                model.set_submodule(path, _packed_layer(path, model.get_submodule(path), matrix))
                replaced.append(path)
        else:
            parameter.data.copy_(weight)
    checkpoint.refuse_unused(())
    return replaced


def _parameters(model: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Every parameter with all its names: tied layers have one in common."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(found.values())


def _matrix(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise TargetError(f"{name} is packed and has {len(shape)} dimensions; load the bf16 folder")
    return shape[0], shape[1]


def _packed_layer(path: str, layer: nn.Module, matrix: Planes) -> nn.Module:
    if type(layer) is nn.Linear:  # a subclass may do more
        return Linear12(matrix, layer.bias)
    if type(layer) is nn.Embedding:
        return Embedding12(matrix)
    raise TargetError(f"{path} is packed, but it is a {type(layer).__name__}; load the bf16 folder")
