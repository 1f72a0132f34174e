"""What makes a flipped bit visible: sha256 of bytes, a fast fold of patterns, a seal of a JSON text."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from reference_mechanisms.weight12.layout import Bits

SEAL = "weight12.seal"
BLANK = "0" * 64
FOLD_BLOCK = 1 << 16

_SEALED = re.compile(rf'"{re.escape(SEAL)}":"([0-9a-f]{{64}})"'.encode())


def sha256(arrays: Iterable[npt.NDArray[np.generic]]) -> str:
    """sha256 (hex) of the bytes of arrays, one after the other."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def fold64(bits: Bits) -> str:
    """A 64-bit sum over the patterns, in hex: any order, any machine, a GPU in one pass.

    sum of bits[i] * a(i mod 2^16) * b(i div 2^16) modulo 2^64, with odd factors a(j) = mix(j) | 1 and
    b(k) = mix(2^16 + k) | 1. As the factors are odd, one changed pattern always changes the sum.
    """
    flat, inner = bits.reshape(-1), _inner()
    starts = range(0, flat.size, FOLD_BLOCK)
    outer = _mix(np.arange(len(starts), dtype=np.uint64) + np.uint64(FOLD_BLOCK)) | np.uint64(1)
    parts = np.empty(len(starts), np.uint64)
    for number, start in enumerate(starts):
        block = flat[start : start + FOLD_BLOCK]
        parts[number] = np.multiply(block, inner[: block.size]).sum(dtype=np.uint64)
    total = (parts * outer).sum(dtype=np.uint64)
    return f"{int(total):016x}"


@functools.cache
def _inner() -> npt.NDArray[np.uint64]:
    return _mix(np.arange(FOLD_BLOCK, dtype=np.uint64)) | np.uint64(1)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 after one step of its counter."""
    value = value * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


def sealed(document: Mapping[str, object], align: int = 1, before: int = 0) -> bytes:
    """JSON text of a document that has the member `SEAL`: `BLANK` once, with the seal put in.

    The seal is the sha256 of the whole text with 64 zeros in the seal's place: no byte of the text
    can change unseen.

    Args:
        document: what to seal.
        align: spaces are added so that the text, and the `before` bytes in front of it, fill a
            multiple of this.
        before: see `align`.
    """
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(before + len(text)) % align)
    blank = f'"{SEAL}":"{BLANK}"'.encode()
    if text.count(blank) != 1:
        raise ValueError(f"a sealed document has one blank member {SEAL}")
    seal = hashlib.sha256(text).hexdigest()
    return text.replace(blank, f'"{SEAL}":"{seal}"'.encode())


def check_seal(text: bytes) -> str:
    """The seal of a sealed text.

    Raises:
        ValueError: there is none, or the text is not the one that was sealed.
    """
    found = list(_SEALED.finditer(text))
    if len(found) != 1:
        raise ValueError(f"it has no {SEAL}")
    begin, end = found[0].span(1)
    seal = text[begin:end].decode()
    if hashlib.sha256(text[:begin] + BLANK.encode() + text[end:]).hexdigest() != seal:
        raise ValueError("its seal does not fit: a byte was changed")
    return seal
