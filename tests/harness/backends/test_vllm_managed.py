"""Servers of a plan are started at once, and none outlives a start that failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from harness.backends.vllm_managed import _start_together
from harness.errors import BackendError

PATIENCE_S = 10.0


def test_all_servers_start_at_once_and_end_with_the_stack() -> None:
    """Each start waits for the other: one after the other would never end."""
    both, ended = threading.Barrier(2), []

    @contextlib.contextmanager
    def server(url: str) -> Iterator[str]:
        both.wait(PATIENCE_S)
        yield url
        ended.append(url)

    with contextlib.ExitStack() as stack:
        urls = _start_together(stack, [lambda: server("a"), lambda: server("b")])
        assert (urls, ended) == (["a", "b"], [])
    assert sorted(ended) == ["a", "b"]


def test_a_server_that_does_not_start_takes_the_others_down() -> None:
    """The error is told, and the server that came up in the meantime ends."""
    ended = []

    @contextlib.contextmanager
    def good() -> Iterator[str]:
        try:
            yield "a"
        finally:
            ended.append("a")

    @contextlib.contextmanager
    def bad() -> Iterator[str]:
        raise BackendError("the server ended with code 1")
        yield "b"

    with pytest.raises(BackendError, match="code 1"), contextlib.ExitStack() as stack:
        _start_together(stack, [bad, good])
    assert ended == ["a"]
