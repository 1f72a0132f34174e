"""What a request to the Messages API may ask for, and the most it can cost. Pure.

Whatever would make the API itself reach into the network, run code or bill otherwise than by tokens is
refused: those are ways out, and they have no price in the table. Fields that are not known are refused,
too, so a new feature is let through by a person who has read what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_loop.gateway.prices import Price, Prices, Usage
from agent_loop.records import Spent

FIELDS = frozenset(
    {"cache_control", "context_management", "diagnostics", "max_tokens", "messages", "metadata", "model"}
    | {"output_config", "output_format", "service_tier", "stop_sequences", "stream", "system"}
    | {"temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"}
)
COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking"})
OWN_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")  # the caller runs them
REMOTE_SOURCES = frozenset({"url", "file"})
OVERHEAD_TOKENS = 2048  # what the API adds to a prompt with tools
COUNT_MARGIN = 1.05  # its own count is an estimate


class Refusal(Exception):
    """A request that is not passed on; the message names the field."""


class Asked(NamedTuple):
    """A request that may be passed on."""

    price: Price
    max_tokens: int
    stream: bool
    most: Usage  # an upper bound: no token is shorter than a byte


def examine(body: Any, size: int, prices: Prices, longest: int) -> Asked:
    """Hold a request body against the rules.

    Args:
        body: decoded JSON.
        size: its length in bytes.
        prices: the table.
        longest: largest `max_tokens` that is passed on.

    Raises:
        Refusal: a field is not allowed.
        UsageError: the model has no price.
    """
    if not isinstance(body, dict):
        raise Refusal("the body is not a JSON object")
    unknown = sorted(set(body) - FIELDS)
    if unknown:
        raise Refusal(f"`{unknown[0]}` is not passed on by this gateway")
    price = prices.of(body.get("model"))
    length = body.get("max_tokens")
    if not isinstance(length, int) or isinstance(length, bool) or not 0 < length <= longest:
        raise Refusal(f"`max_tokens` must be an integer from 1 to {longest}")
    if body.get("service_tier", "standard_only") not in ("auto", "standard_only"):
        raise Refusal("`service_tier` must be 'auto' or 'standard_only'")
    for tool in body.get("tools") or ():
        _examine_tool(tool)
    for block in _tables(body.get("messages"), body.get("system")):
        source = block.get("source")
        if isinstance(source, dict) and source.get("type") in REMOTE_SOURCES:
            raise Refusal(
                f"a `source` of type {source['type']!r} is fetched elsewhere; send it in the message"
            )
    return Asked(
        price=price,
        max_tokens=length,
        stream=body.get("stream") is True,
        most=bound(body, size + OVERHEAD_TOKENS, length),
    )


def bound(body: Any, input_tokens: int, max_tokens: int) -> Usage:
    """The dearest way in which so many tokens can be billed for this body."""
    lifetimes = {block.get("ttl", "5m") for block in _controls(body)}
    if not lifetimes:
        return Usage(input_tokens=input_tokens, output_tokens=max_tokens)
    if lifetimes == {"5m"}:
        return Usage(cache_write_5m=input_tokens, output_tokens=max_tokens)
    return Usage(cache_write_1h=input_tokens, output_tokens=max_tokens)


def spent(usage: Usage, price: Price) -> Spent:
    """One request, as budgets count it."""
    return Spent(
        dollars=price.dollars(usage),
        input_tokens=usage.all_input,
        output_tokens=usage.output_tokens,
        turns=1,
    )


def _examine_tool(tool: Any) -> None:
    if not isinstance(tool, dict):
        raise Refusal("`tools` holds something that is not an object")
    kind = tool.get("type", "custom")
    if kind is None or kind == "custom" or str(kind).startswith(OWN_TOOLS):
        return
    raise Refusal(f"`tools`: type {kind!r} is run by the API itself and is not passed on")


def _controls(body: Any) -> Iterator[dict[str, Any]]:
    for table in _tables(body):
        control = table.get("cache_control")
        if isinstance(control, dict):
            yield control


def _tables(*roots: Any) -> Iterator[dict[str, Any]]:
    """Every object in JSON values, however deep."""
    left = list(roots)
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
