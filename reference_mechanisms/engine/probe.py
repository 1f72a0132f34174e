"""Is this engine row-invariant on this machine? Measured, never assumed.

Forces the same tokens through the target in one-token steps, in verify shapes and in a batch, and
compares the logits bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference_mechanisms.engine.lanes import DEEPEST, Lanes
from reference_mechanisms.engine.rows import Rows, Segment
from reference_mechanisms.engine.target import Cache, Target

PREFIX = 24  # positions in front of the compared ones
COMPARED = 16  # positions whose logits are compared
NEEDED = 2  # rows of a step that can hold a tree


class Probe(NamedTuple):
    """What was found."""

    row_invariant: bool  # every shape gave the bits of the one-token steps
    shapes: tuple[int, ...]  # rows per forward that were tried
    batch: int  # requests of the batch that was tried
    positions: int  # compared per shape
    largest_difference: float  # logits; 0 where row-invariant


def probe(target: Target, shapes: Sequence[int], batch: int) -> Probe:
    """Compare logits of `shapes` rows and of a batch with those of one-token steps.

    Args:
        target: the model.
        shapes: rows per forward, each at least 1.
        batch: requests decoded together; 1 tries no batch.
    """
    ids = _ids(target.config.vocab_size)
    cache = target.new_cache(batch, len(ids))
    single = _logits(target, cache, ids, rows=1, slots=1)
    tried = [_logits(target, cache, ids, rows=rows, slots=1) for rows in sorted(set(shapes) - {1})]
    if batch > 1:
        tried.append(_logits(target, cache, ids, rows=1, slots=batch))
        tried.append(_logits(target, cache, ids, rows=max(shapes), slots=batch))
    differences = [float((found.double() - single.double()).abs().max()) for found in tried]
    equal = all(torch.equal(found, single) for found in tried)
    return Probe(equal, tuple(sorted(set(shapes))), batch, COMPARED, max(differences, default=0.0))


def probe_lanes(narrow: Lanes, wide: Lanes, *, trees: bool = False) -> Probe:
    """Compare logits of steps of fixed shape: rows that are drafts against rows that are anchors.

    Args:
        narrow: of the arm with the fewest rows.
        wide: of the arm with the most, on the same cache.
        trees: try the draft among the nodes of trees, too.
    """
    ids = _ids(wide.vocabulary)
    single, tried = _logits_of_chains(narrow, ids, 1), [_logits_of_chains(wide, ids, wide.rows)]
    if trees and wide.rows > NEEDED:
        tried.append(_logits_in_trees(wide, ids))
    difference = max(float((found.double() - single.double()).abs().max()) for found in tried)
    shapes = tuple(sorted({narrow.rows, wide.rows}))
    return Probe(all(torch.equal(found, single) for found in tried), shapes, 1, len(ids), difference)


def _logits_of_chains(lanes: Lanes, ids: Sequence[int], rows: int) -> Tensor:
    """Logits of every token, `rows` of them a step."""
    lane, cache = lanes.checking(()), lanes.cache
    cache.clear(0)
    found = []
    for at in range(0, len(ids), rows):
        step = ids[at : at + rows]
        found.append(lane.verify(step, at).logits.clone())
        cache.commit(0, len(step))
    return torch.cat(found)


def _logits_in_trees(lanes: Lanes, ids: Sequence[int]) -> Tensor:
    """Logits of every token as a node whose sibling stands in front of it."""
    lane, cache = lanes.checking_trees(()), lanes.cache
    deep = min(lanes.rows - 1, 2 * DEEPEST) // 2 + 1  # tokens of a tree: the anchor, then pairs
    cache.clear(0)
    found = []
    for at in range(0, len(ids), deep):
        tokens, parents = [ids[at]], [-1]
        for token in ids[at + 1 : at + deep]:
            above = len(tokens) - 1
            tokens += ((token + 1) % lanes.vocabulary, token)
            parents += (above, above)
        path = range(0, len(tokens), 2)
        found.append(lane.verify(tokens, parents, at).logits[list(path)].clone())
        cache.commit_path(0, path)
    return torch.cat(found)


def _ids(vocabulary: int) -> list[int]:
    """Tokens spread over the vocabulary; what they say does not matter, only that all shapes see them."""
    return [(7 + 7919 * n) % vocabulary for n in range(PREFIX + COMPARED)]


def _logits(target: Target, cache: Cache, ids: Sequence[int], rows: int, slots: int) -> Tensor:
    """Logits [COMPARED, vocabulary] of slot 0, forced in steps of `rows` rows on `slots` equal requests."""
    for slot in range(slots):
        cache.clear(slot)
        segment = Segment(slot, 0, PREFIX)
        target.forward(Rows(ids[:PREFIX], range(PREFIX), (segment,)), cache)
        cache.commit(slot, PREFIX)
    parts = []
    for start in range(PREFIX, len(ids), rows):
        step = ids[start : start + rows]
        places = range(start, start + len(step))
        segments = [Segment(slot, start, len(step)) for slot in range(slots)]
        packed = Rows([*step] * slots, [*places] * slots, segments)
        parts.append(target.logits(target.forward(packed, cache).hidden)[: len(step)])
        for slot in range(slots):
            cache.commit(slot, len(step))
    return torch.cat(parts)
