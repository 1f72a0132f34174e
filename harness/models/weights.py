"""The digest of a model's weights, from the safetensors files alone (no torch).

It depends on names, types, shapes and bytes of the tensors, not on how they are split over files
or on file metadata, so a re-saved or re-sharded copy of the same weights has the same digest.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TIED_HEAD = "lm_head.weight"  # some writers store it a second time although the embedding is the head
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class _Entry(msgspec.Struct):
    """One tensor of a safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: mmap.mmap
    first: int  # byte offsets into the file
    last: int


def weights_digest(folder: Path, *, tied_head: bool) -> str:
    """sha256 (hex) over every tensor in name order: name, type, shape, bytes.

    Args:
        folder: a Hugging Face model folder.
        tied_head: the head is the embedding (`tie_word_embeddings`); a stored copy is skipped.

    Raises:
        ModelError: a weights file is missing, cut short, or not safetensors.
    """
    found = hashlib.sha256()
    with ExitStack() as stack:
        tensors = [tensor for path in weight_files(folder) for tensor in _tensors(path, stack)]
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise ModelError(f"{folder}: a tensor lies in two weight files; remove the stale file")
        for tensor in sorted(tensors, key=lambda t: t.name):
            if tied_head and tensor.name == TIED_HEAD:
                continue
            shape = ",".join(str(size) for size in tensor.shape)
            found.update(f"{tensor.name}\n{tensor.dtype}\n{shape}\n".encode())
            with memoryview(tensor.file) as whole, whole[tensor.first : tensor.last] as data:
                found.update(data)
    return found.hexdigest()


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that transformers would load: those of the index, else the single file.

    Raises:
        ModelError: there are none, or only pickled ones.
    """
    if (folder / INDEX).is_file():
        try:
            named = json.loads((folder / INDEX).read_bytes())["weight_map"].values()
            names = sorted({str(name) for name in named})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ModelError(f"{folder / INDEX} is not a weight index; download the model again") from None
        outside = next((name for name in names if Path(name).name != name or "\0" in name), None)
        if outside is not None or not names:
            raise ModelError(f"{folder / INDEX} names {outside!r:.80}, no file in the folder; do not use it")
    else:
        names = [SINGLE]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and any(folder.glob("*.bin")):
        raise ModelError(
            f"{folder} holds pickled weights (*.bin), which can run code; save the model as safetensors"
        )
    if missing:
        raise ModelError(f"{folder} has no {missing[0]}; download the model's weights into it")
    return tuple(folder / name for name in names)


def _tensors(path: Path, stack: ExitStack) -> Iterator[_Tensor]:
    """Every tensor of a file, mapped for as long as the stack lasts."""
    try:
        file = stack.enter_context(path.open("rb"))
        mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelError(f"{path} cannot be read: {error}; download the model again") from None
    size = int.from_bytes(mapped[:8], "little")
    start = 8 + size
    if len(mapped) < 8 or size > min(MAX_HEADER_BYTES, len(mapped) - 8):
        raise ModelError(f"{path} is not a safetensors file or is cut short; download the model again")
    for name, entry in _header(path, mapped[8:start]).items():
        first, last = entry.data_offsets
        if not 0 <= first <= last <= len(mapped) - start:
            raise ModelError(f"{path} is cut short at tensor {name}; download the model again")
        yield _Tensor(name, entry.dtype, tuple(entry.shape), mapped, start + first, start + last)


def _header(path: Path, data: bytes) -> dict[str, _Entry]:
    try:
        plain: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        plain.pop("__metadata__", None)
        return msgspec.convert(plain, type=dict[str, _Entry])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} has a broken safetensors header: {error}; download it again") from None
