"""The commitment: salted hashes of every row under one root, published before anything is opened.

The salt of a row (32 random-looking bytes) is hashed with it, so that nobody who has the published
roots can confirm a guess of a row; whoever is given salt and row can check both against the root.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.errors import DataError
from sealed_evals.campaign.records import Campaign, SealedRow, ShardOpening, ShardSeal
from sealed_evals.merkle import merkle_root


def leaf(row: SealedRow) -> str:
    """Salted sha256 (hex) of a row."""
    return hashlib.sha256(bytes.fromhex(row.salt) + row.line.encode()).hexdigest()


def shard_root(rows: Sequence[SealedRow]) -> str:
    """Merkle root (hex) over the rows of a shard, in order."""
    return merkle_root([leaf(row) for row in rows])


def campaign_root(public: ShardSeal, shards: Sequence[ShardSeal]) -> str:
    """Merkle root (hex) over the roots of all shards, the public one first."""
    return merkle_root([public.root, *(shard.root for shard in shards)])


def check_opening(opening: ShardOpening, campaign: Campaign) -> None:
    """Hold that an opened shard is the one the campaign published.

    Raises:
        DataError: it is not; the message names the shard, never a row.
    """
    where = f"shard {opening.shard} of campaign {campaign.campaign_id}"
    sealed = {seal.name: seal for seal in (campaign.public, *campaign.shards)}.get(opening.shard)
    if opening.campaign_id != campaign.campaign_id or sealed is None:
        raise DataError(f"{where}: the opening belongs to another campaign; give the one that was published")
    try:
        root = shard_root(opening.rows)
    except ValueError:
        raise DataError(f"{where}: a salt is not hexadecimal; restore the opening") from None
    if len(opening.rows) != sealed.rows or root != sealed.root:
        raise DataError(f"{where}: its rows are not those committed to: root {root}, published {sealed.root}")


def check_root(campaign: Campaign) -> None:
    """Hold that the published root is that of the published shards.

    Raises:
        DataError: it is not.
    """
    if campaign_root(campaign.public, campaign.shards) != campaign.root:
        raise DataError(
            f"campaign {campaign.campaign_id} contradicts itself: its root is not that of its shards; "
            "take campaign.json from where it was published"
        )
