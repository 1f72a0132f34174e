"""The controller's folder: the key of each campaign, the head of its ledger, all evidence.

It must lie where no explorer can read: outside the campaign's folder, outside every version-controlled
tree, closed to other users. Whoever can read it can open every shard.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.codec import canonical_json, from_json
from harness.errors import DataError, InvalidRun, UsageError
from harness.storage import hold, write_atomic
from sealed_evals.campaign.crypto import KEY_BYTES, derive
from sealed_evals.campaign.records import Campaign, ControllerKey, Head

ELSEWHERE = "name another one with --controller or SPECPILOT_CONTROLLER_DIR"


class Controller:
    """Names of the files of one campaign in the controller's folder."""

    def __init__(self, root: Path, campaign_id: str) -> None:
        """Describe the folder; nothing is created."""
        self.folder = root / campaign_id
        self.key = self.folder / "key.json"
        self.head = self.folder / "head.json"

    def evidence(self, shard: str) -> Path:
        """Folder of the full evidence on one shard."""
        return self.folder / "evidence" / shard


def key_id(secret: bytes) -> str:
    """What is published of a secret (16 hex digits), to tell it from another."""
    return derive(secret, "identity").hex()[:16]


def new_secret() -> bytes:
    """32 bytes from the operating system's source."""
    return secrets.token_bytes(KEY_BYTES)


def refuse_unsafe_place(root: Path, campaign: Path) -> None:
    """Hold that the controller's folder is out of the way of explorers.

    Raises:
        UsageError: it is inside the campaign's folder or the other way round, or inside a git tree.
        InvalidRun: other users may enter it.
    """
    place, other = root.resolve(), campaign.resolve()
    if place.is_relative_to(other) or other.is_relative_to(place):
        raise UsageError(f"the controller's folder {root} and the campaign {campaign} overlap; {ELSEWHERE}")
    for parent in (place, *place.parents):
        if (parent / ".git").exists():
            raise UsageError(f"the controller's folder {root} lies in the git tree {parent}; {ELSEWHERE}")
    if place.is_dir() and stat.S_IMODE(place.stat().st_mode) & 0o077:
        raise InvalidRun(f"other users may enter the controller's folder {root}; chmod 700 {root}")


def store(controller: Controller, key: ControllerKey, head: Head) -> None:
    """Write the key of a new campaign, readable by its owner only.

    Raises:
        InvalidRun: the folder cannot be written.
    """
    try:
        root = controller.folder.parent
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        controller.folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(controller.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(canonical_json(key) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidRun(f"cannot write {controller.key}: {error.strerror}; {ELSEWHERE}") from None
    write_head(controller, head)


def write_head(controller: Controller, head: Head) -> None:
    """Write down, synced, how far the ledger reaches."""
    write_atomic(controller.head, canonical_json(head) + b"\n")
    descriptor = os.open(controller.folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_key(controller: Controller, campaign: Campaign, campaign_sha256: str) -> bytes:
    """The secret of a campaign.

    Raises:
        DataError: there is no key, it is another campaign's, or campaign.json is not what it was
            when the campaign started.
        InvalidRun: other users may read the key.
    """
    try:
        mode = stat.S_IMODE(controller.key.stat().st_mode)
        data = controller.key.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {controller.key}: {error.strerror}; {ELSEWHERE}") from None
    if mode & 0o077:
        raise InvalidRun(f"other users may read {controller.key}; chmod 600 {controller.key}")
    try:
        key = from_json(data, ControllerKey, str(controller.key))
        secret = bytes.fromhex(key.secret)
    except (DataError, ValueError):  # the decoder's own words might quote the secret
        raise DataError(f"{controller.key} is damaged; restore it from a copy") from None
    if len(secret) != KEY_BYTES or key_id(secret) != campaign.key_id:
        raise DataError(
            f"{controller.key} is not the key of campaign {campaign.campaign_id} (wrong key); "
            "restore it from a copy"
        )
    if key.campaign_sha256 != campaign_sha256:
        raise DataError(
            f"campaign.json of {campaign.campaign_id} is not what it was when the campaign started; "
            "restore it from where it was published"
        )
    return secret


def load_head(controller: Controller) -> Head:
    """How far the ledger must reach.

    Raises:
        DataError: it cannot be read; without it, a ledger that was cut cannot be told.
    """
    try:
        data = controller.head.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {controller.head}: {error.strerror}; without it nobody can tell whether the "
            "ledger was cut; restore it from a copy"
        ) from None
    return from_json(data, Head, str(controller.head))


@contextlib.contextmanager
def held(controller: Controller) -> Iterator[None]:
    """Hold the campaign's key; a second confirmation at the same time, from any copy, is refused.

    Raises:
        InvalidRun: another process holds it.
        DataError: there is no key.
    """
    try:
        handle = controller.key.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {controller.key}: {error.strerror}; {ELSEWHERE}") from None
    with handle:
        hold(handle, f"another confirmation of campaign {controller.folder.name} is running; wait for it")
        yield
