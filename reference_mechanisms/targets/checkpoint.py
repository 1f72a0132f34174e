"""Tensors of a Hugging Face folder: safetensors only, whole or sharded, each used exactly once.

A missing, unused, misshapen or quantised tensor is refused by name: a checkpoint that only nearly
fits is another model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from reference_mechanisms.errors import TargetError
from reference_mechanisms.targets.config import read_json

SINGLE = "model.safetensors"
SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
PLAIN_TYPES = ("F64", "F32", "F16", "BF16")


class Checkpoint:
    """The tensors of a folder, read on demand. A context manager: it keeps files open."""

    def __init__(self, folder: Path) -> None:
        """Open every file and list its tensors.

        Raises:
            TargetError: no safetensors, a missing or broken file, or an index that does not fit.
        """
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self._files: dict[str, Any] = {}  # tensor name -> open file
        self._shards: dict[str, str] = {}  # tensor name -> file name
        self._taken: set[str] = set()
        with contextlib.ExitStack() as opening:
            opening.enter_context(self._stack)
            for name in _files(folder):
                self._open(folder / name)
            _check_index(folder, self._shards)
            self._stack = opening.pop_all()

    def __enter__(self) -> Self:
        """The checkpoint itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name exists."""
        return name in self._files

    @property
    def names(self) -> frozenset[str]:
        """Every stored tensor."""
        return frozenset(self._files)

    def stored_as(self, name: str) -> str:
        """The safetensors type of a tensor that exists, such as "BF16"."""
        found: str = self._files[name].get_slice(name).get_dtype()
        return found

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor, converted to `dtype`.

        Raises:
            TargetError: it is missing, has another shape, or is stored in a quantised type.
        """
        return self._take(name, shape, PLAIN_TYPES).to(dtype)

    def take_exact(self, name: str, shape: tuple[int, ...], stored_as: str) -> Tensor:
        """A tensor that is no weight, as it is stored.

        Args:
            name: of the tensor.
            shape: it must have.
            stored_as: safetensors type it must have, such as "I64" or "BOOL".

        Raises:
            TargetError: it is missing, or has another shape or type.
        """
        return self._take(name, shape, (stored_as,))

    def refuse_unused(self, ignore: Iterable[str], parts: Iterable[str] = ()) -> None:
        """Hold that every tensor was taken.

        Args:
            ignore: ends of the names of exceptions.
            parts: beginnings of the names of exceptions: parts of the checkpoint that are not the target.

        Raises:
            TargetError: naming the first that was not.
        """
        refuse_unused(self.folder, self.names - self._taken, ignore, parts)

    def _take(self, name: str, shape: tuple[int, ...], types: tuple[str, ...]) -> Tensor:
        if name not in self._files:
            raise TargetError(f"{self.folder}: tensor {name} is missing; give the complete checkpoint")
        stored = self._files[name].get_slice(name)
        if stored.get_dtype() not in types:
            raise TargetError(
                f"{self.folder}: tensor {name} is stored as {stored.get_dtype()}; this engine reads "
                f"{', '.join(types)}, so give an unquantised checkpoint"
            )
        if tuple(stored.get_shape()) != shape:
            raise TargetError(
                f"{self.folder}: tensor {name} has shape {tuple(stored.get_shape())}, "
                f"config.json asks for {shape}"
            )
        self._taken.add(name)
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def _open(self, path: Path) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        except FileNotFoundError:
            raise TargetError(f"{path} is missing; give the complete checkpoint") from None
        except (SafetensorError, OSError) as error:
            raise TargetError(f"{path} is not a safetensors file: {error}; download it again") from None
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            if name in self._files:
                raise TargetError(f"{path}: tensor {name} is stored twice; give one complete checkpoint")
            self._files[name] = file
            self._shards[name] = path.name


def refuse_unused(
    folder: Path, untaken: Iterable[str], ignore: Iterable[str], parts: Iterable[str] = ()
) -> None:
    """Hold that no tensor was left over, except those that end with `ignore` or begin with `parts`.

    Raises:
        TargetError: naming the first that was.
    """
    endings, beginnings = tuple(ignore), tuple(parts)
    unused = sorted(
        name for name in untaken if not name.endswith(endings) and not name.startswith(beginnings)
    )
    if unused:
        raise TargetError(
            f"{folder}: tensor {unused[0]} ({len(unused)} in all) has no place in this "
            "architecture; check `architectures` in config.json"
        )


def _files(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if (folder / INDEX).is_file():
        return sorted(set(_weight_map(folder).values()))
    pickled = next((name for name in PICKLED if (folder / name).is_file()), None)
    if pickled is not None:
        raise TargetError(
            f"{folder} has pickled weights only ({pickled}); pickles can run code, convert to {SINGLE}"
        )
    raise TargetError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}; give a complete model folder")


def _weight_map(folder: Path) -> dict[str, str]:
    found = read_json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise TargetError(f"{folder / INDEX}: `weight_map` must map tensor names to file names")
    for name in found.values():
        if Path(name).name != name or not name.endswith(SUFFIX) or "\0" in name:
            raise TargetError(
                f"{folder / INDEX}: `weight_map` names {name!r}, no {SUFFIX} file in the folder"
            )
    return found


def _check_index(folder: Path, stored: Mapping[str, str]) -> None:
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return
    wrong = sorted({name for name, _ in _weight_map(folder).items() ^ stored.items()})
    if wrong:
        raise TargetError(
            f"{folder / INDEX}: `weight_map` and the shards disagree about tensor {wrong[0]}; download again"
        )
