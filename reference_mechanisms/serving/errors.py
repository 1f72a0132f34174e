"""What can go wrong: what a client is told, each with its HTTP status, and what ends the command."""

from __future__ import annotations

from reference_mechanisms.errors import MechanismError


class ServeError(MechanismError):
    """The server cannot go on: its engine failed."""


class ChoiceError(MechanismError):
    """What the command line asks for cannot be: an option says nothing, two things, or a taken address."""


class Refusal(Exception):
    """A request that gets no answer, and why."""

    status = 400
    kind = "invalid_request_error"
    retry_after_s: int | None = None

    def __init__(self, message: str, field: str | None = None) -> None:
        """Take the message and the field of the body that it is about."""
        super().__init__(message)
        self.message, self.field = message, field


class UnknownModel(Refusal):
    """`model` is not the one that is served."""

    status = 404


class TooLarge(Refusal):
    """The body is longer than the server reads."""

    status = 413


class QueueFull(Refusal):
    """As many requests wait as the server lets wait; the client may come again."""

    status = 429
    kind = "rate_limit_error"
    retry_after_s = 1


class NotServing(Refusal):
    """The engine has failed, or the server is being stopped."""

    status = 503
    kind = "service_unavailable_error"


class EngineFailed(Refusal):
    """The engine failed while it decoded the request."""

    status = 500
    kind = "internal_server_error"
