"""What a gateway is started with. Read from its standard input, so that nothing of it can be looked up.

History: gateway/1 (0.1.0) first version.
"""

from __future__ import annotations

from typing import Literal

from agent_loop.gateway.patience import Patience
from agent_loop.records import Budget
from harness.codec import Record

UPSTREAM = "https://api.anthropic.com"


class Guest(Record, frozen=True):
    """One explorer: what it may spend, and the token it shows instead of a key."""

    budget: Budget
    token: str


class Settings(Record, frozen=True):
    """A gateway of one campaign."""

    campaign: str
    folder: str  # of ledger and transcripts
    explorers: dict[str, Guest]
    schema: Literal["gateway/1"] = "gateway/1"
    budget: Budget = Budget()  # of the campaign
    key: str | None = None  # this, or `key_file`
    key_file: str | None = None  # read by the gateway alone
    upstream: str = UPSTREAM
    prices: str | None = None  # file of a table; None: the package's own
    patience: Patience = Patience()
    longest: int = 128_000  # `max_tokens` of a request, at most
    socket: str | None = None  # UNIX socket to listen on, too: the door for a sandbox


class Ready(Record, frozen=True):
    """The one line a gateway says."""

    url: str
    socket: str | None = None
