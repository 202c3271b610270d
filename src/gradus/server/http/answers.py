"""Answers in one piece: JSON, or an error in the shape of the path's protocol."""

from typing import Any

from fastapi import Response

from gradus.server.api.errors import Problem, shape_of
from gradus.server.api.frames import encode


def json_response(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, media_type="application/json")


def problem_response(problem: Problem, path: str) -> Response:
    """Answer with an error, in the shape of the path's protocol."""
    return json_response(problem.status, shape_of(path)(problem), problem.all_headers)
