"""Errors as HTTP answers: one `Problem` for every exception, and its shape in each protocol."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.engine.structured import FAULT
from gradus.errors import CapacityError, RequestError
from gradus.server.failures import (
    BodyError,
    DeadlineMissed,
    QuotaExceeded,
    RequestFailed,
    RequestTimeout,
    Unavailable,
    UnknownModel,
)
from gradus.text.completion import Completion

CLOSE = {"connection": "close"}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client sees it. status: HTTP's; kind: our word for it, which the protocols translate.

    param, limit, got: a RequestError's. retry_after: seconds after which the same request may succeed. final: the same
    request would fail again, although its status makes SDKs repeat it.
    """

    status: int
    kind: str
    message: str
    param: str | None = None
    limit: str | None = None
    got: Any = None
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    final: bool = False

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the answer. SDKs prefer the nonstandard retry-after-ms, and obey x-should-retry."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers |= {"retry-after": str(math.ceil(self.retry_after))}
            headers |= {"retry-after-ms": str(math.ceil(1000 * self.retry_after))}
        if self.final:
            headers["x-should-retry"] = "false"
        return headers


def problem_of(error: Exception) -> Problem:
    """Describe an exception for its client. A bug of ours gets a generic text."""
    match error:
        case BodyError():
            # if the rest of the body was not read, the connection cannot be reused
            return _refused(error, error.status, {} if error.status == 400 else CLOSE)
        case UnknownModel():
            return Problem(404, "model_not_found", str(error), error.param, error.limit, error.got)
        case RequestError():
            return _refused(error, 400, {})
        case Unavailable():
            return Problem(503, error.kind, str(error), retry_after=error.retry_after)
        case QuotaExceeded():
            return Problem(429, "rate_limit_exceeded", str(error), retry_after=error.retry_after)
        case CapacityError():
            return Problem(503, "overloaded", str(error), retry_after=1)
        case RequestTimeout():
            return Problem(504, "timeout", str(error), final=True)
        case DeadlineMissed():
            return Problem(504, "deadline", str(error), final=True)
        case RequestFailed():
            return Problem(500, "internal_error", str(error), final=True)
    return Problem(500, "internal_error", "internal error; the server's log says why", headers=CLOSE)


def _refused(error: RequestError, status: int, headers: Mapping[str, str]) -> Problem:
    return Problem(status, "invalid_request", str(error), error.param, error.limit or None, error.got, headers=headers)


def failure_of(completion: Completion) -> Exception | None:
    """Return the error behind a finish_reason; None if the sample ended as requested."""
    match completion.finish_reason:
        case "error" if completion.error is not None and completion.error.startswith(FAULT):
            return RequestError(completion.error, param="structured")  # the request's own, and no bug
        case "error":
            return RequestFailed()
        case "timeout":
            return RequestTimeout("the request did not end within its timeout")
        case "deadline":
            return DeadlineMissed("the request could not end by its deadline")
        case "cancelled":
            return Unavailable("the server is shutting down", "draining")
    return None


# -- the protocols' shapes ---------------------------------------------------------------------------------------------


def own(problem: Problem) -> dict[str, Any]:
    """The body of an error of /generate, and of every route outside the other protocols."""
    return {
        "error": {
            "message": problem.message,
            "type": problem.kind,
            "param": problem.param,
            "limit": problem.limit,
            "got": problem.got,
            "code": problem.status,
        }
    }


OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def openai(problem: Problem) -> dict[str, Any]:
    """The body of an error in OpenAI's shape, with our `limit` and `got` added."""
    kind = OPENAI_TYPES.get(problem.status)
    if kind is None:
        kind = "invalid_request_error" if problem.status < 500 else "server_error"
    code = "context_length_exceeded" if too_long(problem) else None if problem.status == 400 else problem.kind
    # LiteLLM, and aider with it, look for these words, and offer to shorten the conversation
    message = f"{problem.message}: the prompt is too long" if too_long(problem) else problem.message
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": problem.param,
            "code": code,
            "limit": problem.limit,
            "got": problem.got,
        }
    }


ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic(problem: Problem) -> dict[str, Any]:
    """The body of an error in Anthropic's shape, and in its wording where clients match on it."""
    kind = ANTHROPIC_TYPES.get(problem.status) or ("invalid_request_error" if problem.status < 500 else "api_error")
    message = problem.message
    if too_long(problem):  # Claude Code reads both numbers, and offers to compact the conversation
        message = f"prompt is too long: {problem.got} tokens > {_number(problem.limit)} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _number(limit: str | None) -> str:
    """Return the number in a limit such as "at most 8191 tokens"."""
    found = re.search(r"\d+", limit or "")
    return found[0] if found else "the"


def too_long(problem: Problem) -> bool:
    """Whether the prompt alone fills the context."""
    return problem.param == "prompt" and isinstance(problem.got, int) and problem.got > 0


Shape = Callable[[Problem], dict[str, Any]]


def shape_of(path: str) -> Shape:
    """Choose the shape of errors by the path: clients of a protocol read no other."""
    if path.startswith("/v1/messages"):
        return anthropic
    return openai if path.startswith("/v1/") else own
