"""Canaries: a string in every row that is nowhere else in the world, and the search for it.

A canary is twelve characters of base 32 (60 bits) made from the campaign's secret and the row's
place, so that the search needs the secret and opens no shard. A text is searched with everything
but those characters removed, so that case, hyphens, line breaks and quotes hide nothing; hex,
base64 and gzip inside it are unpacked once more. What is not found proves nothing: whoever copies
a row may leave its canary out. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sealed_evals.campaign.crypto import mac

LENGTH = 12
ALPHABET = b"abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648, lower case
DEPTH = 2  # how often an encoding inside an encoding is unpacked

Codes = npt.NDArray[np.uint64]
Encoding = Literal["plain", "base64", "hex", "gzip"]

_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/_-]{20,}\r?\n?)+")  # lines of it, too
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){16,}")
_GZIP = re.compile(rb"\x1f\x8b\x08")
_VALUES = np.full(256, 255, dtype=np.uint8)
_VALUES[np.frombuffer(ALPHABET, dtype=np.uint8)] = np.arange(32)
_VALUES[np.frombuffer(ALPHABET[:26].upper(), dtype=np.uint8)] = np.arange(26)


class Sighting(NamedTuple):
    """A canary in a text."""

    number: int  # into the canaries that were searched for
    line: int  # of the text, counted from 1
    encoding: Encoding  # the outermost


def canary(key: bytes, row: str) -> str:
    """The canary of a row, as it stands in its text: xxxx-xxxx-xxxx.

    Args:
        key: derived for canaries.
        row: shard and place, e.g. "003/07".
    """
    letters = base64.b32encode(mac(key, row))[:LENGTH].decode().lower()
    return "-".join(letters[start : start + 4] for start in range(0, LENGTH, 4))


def pack(canaries: Sequence[str]) -> Codes:
    """The canaries as 60-bit numbers, in order."""
    return np.array([_windows(text.encode())[0][0] for text in canaries], dtype=np.uint64)


def search(data: bytes, codes: Codes) -> list[Sighting]:
    """Every canary in a text, once a line."""
    return sorted(set(_search(data, codes, DEPTH)))


def _search(data: bytes, codes: Codes, depth: int) -> Iterator[Sighting]:
    windows, places = _windows(data)
    if len(windows) and len(codes):
        order = np.argsort(codes, kind="stable")
        found = np.searchsorted(codes[order], windows)
        found[found == len(codes)] = 0
        for hit in np.flatnonzero(codes[order][found] == windows):
            line = data.count(b"\n", 0, int(places[hit])) + 1
            yield Sighting(int(order[found[hit]]), line, "plain")
    if depth:
        for start, encoding, inner in _unpacked(data):
            line = data.count(b"\n", 0, start) + 1
            yield from (Sighting(s.number, line, encoding) for s in _search(inner, codes, depth - 1))


def _windows(data: bytes) -> tuple[Codes, npt.NDArray[np.int64]]:
    """Every run of twelve characters of the alphabet, other characters left out, and where it starts."""
    values = _VALUES[np.frombuffer(data, dtype=np.uint8)]
    places = np.flatnonzero(values < 32)
    kept = values[places].astype(np.uint64)
    count = len(kept) - LENGTH + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    codes = np.zeros(count, dtype=np.uint64)
    for offset in range(LENGTH):
        codes = (codes << np.uint64(5)) | kept[offset : offset + count]
    return codes, places[:count]


def _unpacked(data: bytes) -> Iterator[tuple[int, Encoding, bytes]]:
    """Encoded pieces of a text: where each starts, how it is encoded, what is in it."""
    for match in _GZIP.finditer(data):
        try:
            yield match.start(), "gzip", zlib.decompressobj(31).decompress(data[match.start() :], 1 << 28)
        except zlib.error:
            continue
    for match in _HEX.finditer(data):
        yield match.start(), "hex", bytes.fromhex(match[0].decode())
    for match in _BASE64.finditer(data):
        letters = match[0].translate(bytes.maketrans(b"-_", b"+/"), b"\r\n")
        for shift in range(4):  # the piece may start inside a longer run of letters
            piece = letters[shift : shift + (len(letters) - shift) // 4 * 4]
            try:
                yield match.start(), "base64", base64.b64decode(piece, validate=True)
            except binascii.Error:
                continue
