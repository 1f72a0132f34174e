"""Merkle tree over the rows of a set: one root for all, and a short proof for each.

Leaves and inner nodes are hashed under different prefixes, so that no inner node can be passed off
as a row (RFC 6962, section 2.1). Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.codec import Record

_LEAF = b"\x00"
_INNER = b"\x01"


class InclusionProof(Record, frozen=True):
    """What is needed beside a row to compute the root: the sibling hashes from leaf to root."""

    index: int  # of the row, counted from 0
    count: int  # rows in the tree
    path: tuple[str, ...]  # sibling hashes (hex), nearest to the leaf first


def merkle_root(row_hashes: Sequence[str]) -> str:
    """Root (hex) over the sha256 (hex) of every row, in order.

    The root of no rows is the sha256 of nothing, as in RFC 6962.
    """
    return _root([_leaf(row_hash) for row_hash in row_hashes]).hex()


def prove_inclusion(row_hashes: Sequence[str], index: int) -> InclusionProof:
    """Proof that the row at `index` belongs to the tree.

    Raises:
        IndexError: there is no such row.
    """
    if not 0 <= index < len(row_hashes):
        raise IndexError(f"row {index} of a tree of {len(row_hashes)} rows")
    leaves = [_leaf(row_hash) for row_hash in row_hashes]
    path = tuple(sibling.hex() for sibling in _path(leaves, index))
    return InclusionProof(index=index, count=len(leaves), path=path)


def verify_inclusion(row_hash: str, proof: InclusionProof, root: str) -> bool:
    """Whether the proof leads from the row to the root.

    >>> rows = [hashlib.sha256(text).hexdigest() for text in (b"one", b"two", b"three")]
    >>> proof = prove_inclusion(rows, 1)
    >>> verify_inclusion(rows[1], proof, merkle_root(rows))
    True
    >>> verify_inclusion(rows[2], proof, merkle_root(rows))
    False
    """
    if not 0 <= proof.index < proof.count:
        return False
    siblings = list(proof.path)
    try:
        found = _climb(_leaf(row_hash), proof.index, proof.count, siblings)
    except ValueError:  # a hash that is not hex, or a path of the wrong length
        return False
    return not siblings and found.hex() == root


def _leaf(row_hash: str) -> bytes:
    return hashlib.sha256(_LEAF + bytes.fromhex(row_hash)).digest()


def _inner(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_INNER + left + right).digest()


def _split(count: int) -> int:
    """Leaves of the left subtree: the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def _root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    left = _split(len(leaves))
    return _inner(_root(leaves[:left]), _root(leaves[left:]))


def _path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    if len(leaves) == 1:
        return []
    left = _split(len(leaves))
    if index < left:
        return [*_path(leaves[:left], index), _root(leaves[left:])]
    return [*_path(leaves[left:], index - left), _root(leaves[:left])]


def _climb(leaf: bytes, index: int, count: int, siblings: list[str]) -> bytes:
    """Root of a subtree from one leaf; takes the siblings it needs off the front of the list."""
    if count == 1:
        return leaf
    left = _split(count)
    if index < left:
        below = _climb(leaf, index, left, siblings)
        return _inner(below, _take(siblings))
    below = _climb(leaf, index - left, count - left, siblings)
    return _inner(_take(siblings), below)


def _take(siblings: list[str]) -> bytes:
    if not siblings:
        raise ValueError("the path is too short")
    return bytes.fromhex(siblings.pop(0))
