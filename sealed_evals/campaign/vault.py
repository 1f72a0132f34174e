"""The campaign's folder: published record, public shard, encrypted shards, ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from harness.codec import canonical_json, from_json
from harness.errors import DataError
from sealed_evals.campaign.commitment import check_opening, check_root, shard_root
from sealed_evals.campaign.crypto import decrypt, derive, encrypt, mac
from sealed_evals.campaign.records import PUBLIC, Campaign, SealedRow, ShardOpening, ShardSeal

R = TypeVar("R")


class CampaignFolder:
    """Names of the files of a campaign; everything here may be read by anyone."""

    def __init__(self, root: Path) -> None:
        """Describe the folder; nothing is created."""
        self.root = root
        self.campaign = root / "campaign.json"
        self.public = root / "public.jsonl"
        self.public_opening = root / "public.opening.json"
        self.ledger = root / "ledger.jsonl"
        self.revealed = root / "revealed"  # openings of all shards, once the campaign is over

    def shard(self, name: str) -> Path:
        """An encrypted shard."""
        return self.root / "shards" / f"{name}.bin"


def load_campaign(folder: CampaignFolder) -> tuple[Campaign, str]:
    """The published record of a campaign and the sha256 of its file.

    Raises:
        DataError: it cannot be read or contradicts itself.
    """
    try:
        data = folder.campaign.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {folder.campaign}: {error.strerror}; give the folder of a campaign with --campaign"
        ) from None
    campaign = from_json(data, Campaign, str(folder.campaign))
    check_root(campaign)
    return campaign, hashlib.sha256(data).hexdigest()


def read_sealed(path: Path) -> bytes:
    """An encrypted shard, as it is.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; restore it from a copy") from None


def read_record(path: Path, kind: type[R]) -> R:
    """One record from a file that may hold rows.

    Raises:
        DataError: it cannot be read; the message quotes nothing from the file.
    """
    data = read_sealed(path)
    try:
        return from_json(data, kind, str(path))
    except DataError:  # the decoder's own words might quote a row
        raise DataError(f"{path}: is damaged or of another version; restore it from a copy") from None


def salted(lines: Sequence[str], secret: bytes, name: str) -> tuple[SealedRow, ...]:
    """The rows of a shard with their salts."""
    key = derive(secret, "salts")
    return tuple(
        SealedRow(salt=mac(key, f"{name}/{number}").hex(), line=line) for number, line in enumerate(lines)
    )


def plain_lines(rows: Sequence[SealedRow]) -> bytes:
    """The rows as a JSON Lines file, without their salts."""
    return b"".join(row.line.encode() + b"\n" for row in rows)


def shard_key(secret: bytes, name: str) -> bytes:
    """Key (32 bytes) of one shard; opens no other."""
    return derive(secret, f"shard/{name}")


def seal_shard(opening: ShardOpening, secret: bytes) -> tuple[ShardSeal, bytes]:
    """What is published of a shard, and its encrypted file (the plain one of the public shard)."""
    if opening.shard == PUBLIC:
        data = plain_lines(opening.rows)
    else:
        key = shard_key(secret, opening.shard)
        data = encrypt(canonical_json(opening), key, _binding(opening.campaign_id, opening.shard))
    seal = ShardSeal(
        name=opening.shard,
        rows=len(opening.rows),
        root=shard_root(opening.rows),
        sealed_sha256=hashlib.sha256(data).hexdigest(),
    )
    return seal, data


def check_sealed(data: bytes, seal: ShardSeal, where: str) -> None:
    """Hold that an encrypted shard is the published one, without opening it.

    Raises:
        DataError: a byte was changed, or the file is another one.
    """
    found = hashlib.sha256(data).hexdigest()
    if found != seal.sealed_sha256:
        raise DataError(
            f"{where} is not the published shard {seal.name}: sha256 {found}, published "
            f"{seal.sealed_sha256}; restore it from a copy"
        )


def open_shard(data: bytes, key: bytes, campaign: Campaign, name: str, where: str) -> ShardOpening:
    """Decrypt one shard and hold it against the published root. Write the ledger first.

    Raises:
        DataError: the key is another's, a byte was changed, or the rows are not those committed to;
            no message holds text of a row.
    """
    plain = decrypt(data, key, _binding(campaign.campaign_id, name), where)
    try:
        opening = from_json(plain, ShardOpening, where)
    except DataError:  # the decoder's own words might quote a row
        raise DataError(f"{where}: what was sealed is no shard; start a new campaign") from None
    check_opening(opening, campaign)
    return opening


def _binding(campaign_id: str, name: str) -> str:
    return f"{campaign_id}/{name}"
