"""Counters and gauges of `/metrics`, under vLLM's names: what reads a vLLM server reads this one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from reference_mechanisms.request import Event


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, model: str) -> None:
        """All at zero.

        Args:
            model: label of every metric.
        """
        self._registry = CollectorRegistry()
        self._model = model
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens that were prefilled")
        self._emitted = self._counter("vllm:generation_tokens", "Tokens that were emitted")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Verify steps that had drafts")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified")
        self._accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted, without the bonus token"
        )
        # There is no prefix cache: none of these two ever moves.
        self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in a prefix cache")
        self._counter("vllm:prefix_cache_hits", "Prompt tokens found in a prefix cache")
        self._finished = Counter(
            "vllm:request_success",
            "Requests that ended well",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._running = self._gauge("vllm:num_requests_running", "Requests that have emitted tokens")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that have emitted nothing yet")

    def count(self, event: Event) -> None:
        """Count what an event of the engine says."""
        self._emitted.inc(len(event.token_ids))
        if event.drafted:
            self._drafts.inc()
            self._drafted.inc(event.drafted)
            self._accepted.inc(event.accepted)
        if event.finish_reason is not None:
            self._finished.labels(self._model, event.finish_reason).inc()

    def prefilled(self, tokens: int) -> None:
        """Count the tokens of a prompt."""
        self._prompt.inc(tokens)

    def occupied(self, running: int, waiting: int) -> None:
        """Say how many requests run and wait."""
        self._running.set(running)
        self._waiting.set(waiting)

    def exposed(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, ("model_name",), registry=self._registry).labels(self._model)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, ("model_name",), registry=self._registry).labels(self._model)
