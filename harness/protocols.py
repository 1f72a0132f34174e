"""The few interfaces between the instrument and what it measures or asks.

A backend is named by text, ``module:function``; the function opens a session that can run one or
more arms on shared weights. The instrument stamps the time of each event itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harness.codec import Record
from harness.errors import UsageError
from harness.models.folder import ModelFolder
from harness.plan import ArmSpec, Deployment
from harness.records import Chunk, DecodeRequest, FinishReason, StepEvent

UNTOLD = float(np.finfo(np.float32).min)  # the logit of a token that a scorer does not tell


class Session(Protocol):
    """One or more arms of a deployment, loaded and ready, in one process."""

    def describe(self) -> dict[str, Any]:
        """Facts for the report: engine name and version, device, dtype, effective settings."""
        ...

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """Do, untimed, what the arm needs before it is measured on these requests.

        `replay` records the continuation it will draft; most arms need nothing.
        """
        ...

    def stream(self, arm: str, requests: Sequence[DecodeRequest]) -> Iterator[StepEvent]:
        """Decode the requests as one batch; yield each event as soon as its tokens are final.

        Nothing runs ahead: the work of a step is done when its event is yielded.

        Raises:
            BackendError: a request cannot be served; the message names it.
        """
        ...

    def close(self) -> None:
        """Free device memory and end every process the session started."""
        ...


class Exchange(Record, frozen=True):
    """One request over a network and all that came back, stamped by the instrument's own client."""

    sent_ns: int  # since the batch began
    end_ns: int  # since the request was first sent: last token or finish reason, or the failure
    token_ids: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    usage_tokens: int | None = None
    retokenised: bool = False
    refusals: int = 0
    error: str | None = None  # None only for a stream that ended well


@runtime_checkable
class ServerSession(Protocol):
    """A session whose arms are servers: requests overlap, so the client stamps times itself.

    The client is the harness's own and runs in the measurer's process; the server does not.
    """

    def describe(self) -> dict[str, Any]:
        """See `Session.describe`; `arms` holds what each server said, and its counters since `prepare`."""
        ...

    def prepare(self, arm: str, requests: Sequence[DecodeRequest]) -> None:
        """See `Session.prepare`."""
        ...

    def exchange(self, arm: str, requests: Sequence[DecodeRequest], clock: Clock) -> list[Exchange]:
        """Send the requests and follow every stream to its end; one exchange each, in order."""
        ...

    def close(self) -> None:
        """See `Session.close`."""
        ...


class SessionFactory(Protocol):
    """What a backend's ``module:function`` must be."""

    def __call__(self, deployment: Deployment, arms: Sequence[ArmSpec]) -> Session | ServerSession:
        """Load what the arms need.

        Raises:
            ModelError: a model folder cannot be used.
            UsageError: an arm's parameter is unknown or out of range.
        """
        ...


class ForcedPosition(Record, frozen=True, array_like=True):
    """Stock's view of one emitted token: its own two best tokens and the emitted one's logit."""

    token_id: int
    top_id: int  # lowest id on ties
    runner_up_id: int
    top_logit: float
    runner_up_logit: float
    token_logit: float


class Scorer(Protocol):
    """An independent stock implementation that scores a given sequence from its ids alone."""

    def describe(self) -> dict[str, Any]:
        """Facts for the report: implementation, version, dtype."""
        ...

    def logits(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], rows: int | None
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Raw logits before each emitted token, forcing all of them.

        Args:
            prompt_token_ids: the prompt.
            token_ids: the emitted tokens to force.
            rows: query rows a pass after the prompt: None scores everything in one prefill,
                1 in one-token steps, n in steps of n rows (the verify shape).

        Yields:
            Chunks [positions, vocabulary] in order, len(token_ids) positions in all; a long output
            comes in several so that it never lies in memory at once. A scorer that knows only the
            best tokens of a position gives `UNTOLD` for the others.
        """
        ...

    def greedy(self, prompt_token_ids: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Stock's own greedy decoding in one-token steps, without end: the caller stops taking.

        Yields:
            A token with the raw logits [vocabulary] it is the argmax of, lowest id on ties.
        """
        ...


class ScorerFactory(Protocol):
    """What an oracle's ``module:function`` must be."""

    def __call__(self, deployment: Deployment, model: ModelFolder | None = None) -> Scorer:
        """Load stock for this deployment; `model` is its target where the caller has found it already."""
        ...


class Clock(Protocol):
    """Source of time; tests pass a fake one."""

    def monotonic_ns(self) -> int:
        """Nanoseconds from an arbitrary origin, never going back."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


def resolve(name: str, field: str) -> Callable[..., Any]:
    """Import ``module:function``.

    Raises:
        UsageError: naming the plan field, when nothing callable is there.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{field}: {name!r} is not of the form 'module:function'")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{field}: cannot import {name!r}: {error}") from None
    if not callable(found):
        raise UsageError(f"{field}: {name!r} is not callable")
    return found  # type: ignore[no-any-return]
