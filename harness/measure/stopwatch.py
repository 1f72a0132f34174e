"""Turns the event stream of a backend into timed responses. The only place that stamps time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import BackendError
from harness.protocols import Clock, Exchange, ServerSession, Session
from harness.records import DecodeRequest, DecodeStep, FinishReason, Response, StepEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the run a batch of requests stands."""

    arm: str
    launch: int
    block: int
    order: int


@dataclass(slots=True)
class _Track:
    """One request while its events arrive."""

    token_ids: list[int] = field(default_factory=list)
    steps: list[DecodeStep] = field(default_factory=list)
    prefill_tokens: int = 0
    first_token_ns: int | None = None
    end_ns: int | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    text: str | None = None
    logits_sha256: str | None = None


def run_batch(
    session: Session | ServerSession,
    requests: Sequence[DecodeRequest],
    prompt_ids: Sequence[str],
    place: Place,
    clock: Clock,
) -> list[Response]:
    """Decode one batch and stamp every event on arrival.

    Args:
        session: the backend that hosts `place.arm`.
        requests: the batch, decoded together.
        prompt_ids: prompt id of each request, same order.
        place: labels of the responses.
        clock: monotonic clock of the measurer.

    Returns:
        One response per request. A backend that fails, or breaks the event protocol, gives failed
        responses for the whole batch: a time is never reported for work that did not end well.
    """
    if isinstance(session, ServerSession):
        return _exchanged(session, requests, prompt_ids, place, clock)
    tracks = [_Track() for _ in requests]
    started_at, sent = clock.time(), clock.monotonic_ns()
    error: str | None = None
    try:
        for event in session.stream(place.arm, requests):
            _note(tracks, event, max(1, clock.monotonic_ns() - sent))
    except BackendError as failure:
        error = str(failure) or type(failure).__name__
    except ValueError as broken:
        error = f"backend broke the event protocol: {broken}"
    if error is None:
        unfinished = [r.request_id for r, track in zip(requests, tracks, strict=True) if track.end_ns is None]
        if unfinished:
            error = f"stream ended before {', '.join(unfinished)} finished"
    return [
        _response(track, prompt_id, request, place, started_at, error)
        for track, prompt_id, request in zip(tracks, prompt_ids, requests, strict=True)
    ]


def _exchanged(
    session: ServerSession,
    requests: Sequence[DecodeRequest],
    prompt_ids: Sequence[str],
    place: Place,
    clock: Clock,
) -> list[Response]:
    """Responses of a batch that a server answered."""
    started_at = clock.time()
    exchanges = session.exchange(place.arm, requests, clock)
    return [
        _from_exchange(found, prompt_id, request, place, started_at + found.sent_ns / 1e9)
        for found, prompt_id, request in zip(exchanges, prompt_ids, requests, strict=True)
    ]


def _from_exchange(
    found: Exchange, prompt_id: str, request: DecodeRequest, place: Place, started_at: float
) -> Response:
    error = found.error
    first = next((chunk.at_ns for chunk in found.chunks if chunk.num_tokens), None)
    if error is None and first is None:
        error = "finished without a token"
    if error is not None:
        return _failed(prompt_id, request, place, started_at, error)
    return Response(
        **_identity(prompt_id, request, place, started_at),
        status="ok",
        token_ids=found.token_ids,
        text=found.text,
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
        first_token_ns=first,
        end_ns=found.end_ns,
        chunks=found.chunks,
        sent_ns=found.sent_ns,
        usage_tokens=found.usage_tokens,
        retokenised=found.retokenised,
        refusals=found.refusals,
    )


def _failed(prompt_id: str, request: DecodeRequest, place: Place, started_at: float, error: str) -> Response:
    return Response(**_identity(prompt_id, request, place, started_at), status="failed", error=error)


def _identity(prompt_id: str, request: DecodeRequest, place: Place, started_at: float) -> dict[str, Any]:
    """The fields that say which response this is."""
    return {
        "prompt_id": prompt_id,
        "arm": place.arm,
        "launch": place.launch,
        "block": place.block,
        "order": place.order,
        "prompt_tokens": len(request.prompt_token_ids),
        "started_at": started_at,
    }


def _note(tracks: list[_Track], event: StepEvent, now: int) -> None:
    if not 0 <= event.index < len(tracks):
        raise ValueError(f"event for request {event.index} of a batch of {len(tracks)}")
    track = tracks[event.index]
    if track.end_ns is not None:
        raise ValueError(f"request {event.index} went on after its last event")
    if event.kind == "prefill":
        track.prefill_tokens += len(event.token_ids)
    else:
        if track.first_token_ns is None:
            raise ValueError(f"request {event.index} has a verify step before its prefill")
        track.steps.append(
            DecodeStep(
                num_draft_tokens=event.num_draft_tokens,
                num_accepted_tokens=event.num_accepted_tokens,
                num_emitted_tokens=len(event.token_ids),
                at_ns=now,
            )
        )
    if event.token_ids and track.first_token_ns is None:
        track.first_token_ns = now
    track.token_ids.extend(event.token_ids)
    if event.finish_reason is not None:
        track.end_ns = now
        track.finish_reason, track.stop_reason = event.finish_reason, event.stop_reason
        track.text, track.logits_sha256 = event.text, event.logits_sha256


def _response(
    track: _Track, prompt_id: str, request: DecodeRequest, place: Place, started_at: float, error: str | None
) -> Response:
    if error is None and track.first_token_ns is None:
        error = "finished without a token"
    if error is not None:
        return _failed(prompt_id, request, place, started_at, error)
    return Response(
        **_identity(prompt_id, request, place, started_at),
        status="ok",
        token_ids=tuple(track.token_ids),
        text=track.text,
        finish_reason=track.finish_reason,
        stop_reason=track.stop_reason,
        prefill_tokens=track.prefill_tokens,
        first_token_ns=track.first_token_ns,
        end_ns=track.end_ns,
        steps=tuple(track.steps),
        logits_sha256=track.logits_sha256,
    )
