"""The records of a campaign: what is published when it starts, and what only its controller holds.

History: campaign/1, opening/1 and controller-key/1 (0.1.0) first versions.
"""

from __future__ import annotations

from typing import Literal

from harness.codec import Record
from harness.plan import Job, Param

Reason = Literal["failed", "invalid", "violated", "audit", "not-faster"]
Test = Literal[
    "interval",  # the whole interval of the speedup lies above the gain
    "sign-flip",  # that, and the exact sign-flip test over launches at the level
]
PUBLIC = "public"


class ShardSeal(Record, frozen=True):
    """What is published of one shard: nothing that tells a row."""

    name: str  # "public", or three digits
    rows: int
    root: str  # Merkle root over the salted hashes of its rows
    sealed_sha256: str  # of the encrypted file; of the plain one for the public shard


class Sizing(Record, frozen=True):
    """Why a shard has the size it has; see `sealed_evals.campaign.sizing`."""

    gain: float  # the least speedup minus one that shall be confirmed
    spread: float  # standard deviation of the log ratio between prompts
    power: float  # chance that a shard confirms it


class Campaign(Record, frozen=True):
    """campaign.json: published when the campaign starts, and never changed after."""

    schema: Literal["campaign/1"]
    campaign_id: str
    created_at: str  # ISO 8601, UTC
    job: Job  # with the stock arm only; sets are those of the shard that is opened
    level: float  # chance that one candidate that is no faster than stock is accepted
    gain: float  # a candidate must be faster than stock by more than this share
    generator: str
    checked_against: tuple[str, ...]  # public sets none of whose rows is reworded here
    sizing: Sizing
    root: str  # Merkle root over the shards' roots, the public shard first
    public: ShardSeal
    shards: tuple[ShardSeal, ...]
    key_id: str  # tells the right key from a wrong one, and nothing else
    test: Test = "interval"  # what an accepted candidate has passed


class SealedRow(Record, frozen=True):
    """One row before it is encrypted: its bytes, and the salt without which nobody can guess it."""

    salt: str  # 32 bytes, hex
    line: str  # canonical JSON of id, category and turns


class ShardOpening(Record, frozen=True):
    """opening.json: with it anyone can check that an opened shard is the one that was published."""

    schema: Literal["opening/1"]
    campaign_id: str
    shard: str
    rows: tuple[SealedRow, ...]


class ControllerKey(Record, frozen=True):
    """key.json in the controller's folder: the one secret of a campaign."""

    schema: Literal["controller-key/1"]
    campaign_id: str
    secret: str  # 32 bytes, hex
    campaign_sha256: str  # of campaign.json


class Head(Record, frozen=True):
    """head.json beside the key: how far the ledger must reach."""

    lines: int
    hash: str  # of the last of them


class Candidate(Record, frozen=True):
    """CANDIDATE.toml: the arm to confirm."""

    schema: Literal["candidate/1"]
    name: str
    backend: str  # "module:function", see harness.protocols.SessionFactory
    params: dict[str, Param] = {}


class Outcome(Record, frozen=True):
    """What a confirmation says: accept, or reject with the class of the reason."""

    accepted: bool
    reason: Reason | None = None  # None exactly for an accepted candidate

    def __post_init__(self) -> None:
        """Hold that a rejection has a reason and an acceptance has none."""
        if self.accepted != (self.reason is None):
            raise ValueError("a rejection has a reason, an acceptance has none")

    @property
    def line(self) -> str:
        """The one line that leaves the confirmation."""
        return "accept" if self.reason is None else f"reject: {self.reason}"
