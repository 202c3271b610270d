"""Answers in one piece: JSON, the page, and problems in the shape of their protocol."""

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from gradus.server.api.errors import CLOSE, Problem, shape_of
from gradus.server.api.frames import encode
from gradus.server.page.document import Document


def json_response(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, media_type="application/json")


def page_response(document: Document, if_none_match: str) -> Response:
    """Answer with a document, or with 304 if the browser has it. The headers, its policy among them, are the same."""
    if document.matches(if_none_match):
        return Response(status_code=304, headers=document.headers)
    return Response(document.body, headers=document.headers)


def problem_response(problem: Problem, scope: Scope) -> Response:
    """Answer with an error, in the shape of the path's protocol. The request's line in the log says why."""
    if record := scope.get("gradus.record"):
        record.problem = problem
    return json_response(problem.status, shape_of(scope["path"])(problem), problem.all_headers)


def refused(status: int, message: str, scope: Scope) -> Response:
    """Refuse a request before its route is known, and close the connection."""
    return problem_response(Problem(status, "invalid_request", message, headers=CLOSE), scope)
