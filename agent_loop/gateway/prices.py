"""What tokens cost: a dated table, four kinds of input apart. Pure but for reading the table.

History: prices/1 (0.1.0) first version.
"""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from harness.codec import Record, from_toml
from harness.errors import UsageError

MILLION = 1_000_000


class Usage(Record, frozen=True):
    """Tokens of one response, as the API bills them."""

    input_tokens: int = 0  # neither written to nor read from the cache
    output_tokens: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_read: int = 0

    @property
    def all_input(self) -> int:
        """Whole prompt."""
        return self.input_tokens + self.cache_write_5m + self.cache_write_1h + self.cache_read


class Price(Record, frozen=True):
    """Of one model, in US dollars per million tokens."""

    input: float
    output: float
    cache_write_5m: float
    cache_write_1h: float
    cache_read: float

    def __post_init__(self) -> None:
        """Refuse a price of nothing."""
        for field in self.__struct_fields__:
            if not 0.0 < getattr(self, field) < math.inf:
                raise ValueError(f"`{field}` must be a positive number of dollars")

    def dollars(self, usage: Usage) -> float:
        """Cost of a response."""
        parts = (
            usage.input_tokens * self.input,
            usage.output_tokens * self.output,
            usage.cache_write_5m * self.cache_write_5m,
            usage.cache_write_1h * self.cache_write_1h,
            usage.cache_read * self.cache_read,
        )
        return sum(parts) / MILLION


class Prices(Record, frozen=True):
    """The table."""

    schema: Literal["prices/1"]
    as_of: str  # date on which the prices were read
    models: dict[str, Price]

    def of(self, model: object) -> Price:
        """Price of a model.

        Raises:
            UsageError: it is not in the table.
        """
        if not isinstance(model, str) or model not in self.models:
            known = ", ".join(sorted(self.models))
            raise UsageError(f"model {model!r} has no price in the table of {self.as_of}; known: {known}")
        return self.models[model]


def load_prices(path: Path | None = None) -> Prices:
    """The table of the package, or one's own.

    Raises:
        UsageError: it cannot be read, or a field does not fit.
    """
    if path is None:
        text = files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
        return from_toml(text, Prices, "prices.toml")
    try:
        return from_toml(path.read_text(encoding="utf-8"), Prices, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"price table {path}: cannot be read: {error}") from None


def usage_of(plain: Any) -> Usage | None:
    """The `usage` object of a response; None if it says nothing that can be billed.

    Cache writes that are not told apart by lifetime are taken for the dearer kind.
    """
    if not isinstance(plain, dict) or not isinstance(plain.get("input_tokens"), int):
        return None

    def count(table: Any, name: str) -> int:
        value = table.get(name) if isinstance(table, dict) else None
        return value if isinstance(value, int) and value >= 0 else 0

    written = count(plain, "cache_creation_input_tokens")
    short = count(plain.get("cache_creation"), "ephemeral_5m_input_tokens")
    long = count(plain.get("cache_creation"), "ephemeral_1h_input_tokens")
    return Usage(
        input_tokens=count(plain, "input_tokens"),
        output_tokens=count(plain, "output_tokens"),
        cache_write_5m=short,
        cache_write_1h=max(long, written - short),
        cache_read=count(plain, "cache_read_input_tokens"),
    )
