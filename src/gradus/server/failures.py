"""Why a request gets no answer: errors that name their cause, for every protocol to write in its own form."""

from typing import Any

from gradus.errors import CapacityError, GradusError, RequestError


class BodyError(RequestError):
    """A body refused before its contents are checked. status: the HTTP status of the refusal."""

    def __init__(self, message: str, status: int, *, limit: str = "", got: Any = None) -> None:
        super().__init__(message, param="body", limit=limit, got=got)
        self.status = status


class Unavailable(CapacityError):
    """The server accepts no requests at present. kind: "overloaded", or its state; retry_after: in whole seconds."""

    def __init__(self, message: str, kind: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class QuotaExceeded(CapacityError):
    """A key has reached its limit of samples at once, or of tokens per minute. retry_after: in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownModel(RequestError):
    """The request is for a model that is not served here."""


class RequestTimeout(GradusError):
    """The request did not end within its timeout."""


class DeadlineMissed(GradusError):
    """The request was ended because it could no longer meet its deadline."""


class RequestFailed(GradusError):
    """A bug of ours ended this one request. Details are only in the log, because clients are not trusted."""

    def __init__(self) -> None:
        super().__init__("the engine could not finish this request; the server's log says why")


class ClientGone(GradusError):
    """The client has left, so the result will not be read."""
