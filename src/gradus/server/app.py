"""The routes. Each one parses, submits, waits and answers. Every error is an exception."""

import http
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

import gradus
from gradus.errors import GradusError
from gradus.server.body import read_json
from gradus.server.client import EngineClient
from gradus.server.config import MAX_HEADER_BYTES, MAX_HEADERS, ServerConfig
from gradus.server.hosts import OwnHosts
from gradus.server.results import ClientGone, Stream
from gradus.server.schemas import (
    GenerateRequest,
    answer,
    encode,
    error_of,
    failure_of,
    http_error,
    limits,
    openapi_of_generate,
)
from gradus.server.streaming import EventStream, cancelled_with_client
from gradus.text.completion import Completion

CLIENT_CLOSED_REQUEST = 499  # nginx's status for an answer that nobody will read; it appears only in logs


def create_app(client: EngineClient, config: ServerConfig) -> FastAPI:
    """Make the application. It starts the client on its own event loop, and closes it on shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        client.start()
        yield
        await client.close()

    # the interactive documentation pages load scripts from elsewhere; the schema itself is at /openapi.json
    app = FastAPI(title="Gradus", version=gradus.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(OwnRequests, hosts=OwnHosts(config.host, config.allowed_hosts))
    app.add_middleware(HeaderLimits)
    _add_error_handlers(app)

    @app.post("/generate", summary="Continue a prompt", openapi_extra=openapi_of_generate(config))
    async def generate(request: Request) -> Response:
        body = await read_json(request, max_bytes=config.max_body_bytes, timeout=config.receive_timeout)
        wanted = GenerateRequest.parse(body, config)
        stream = client.submit(wanted.prompt, wanted.params, wanted.scheduling)
        async with cancelled_with_client(request.receive, stream):
            await stream.accepted()
            if not wanted.stream:
                completions = await all_completions(stream)
                return json_response(200, answer(completions, model_name(client)))
        return EventStream(stream, model_name(client), config)

    @app.get("/health", summary="Whether requests are taken: 200, or 503 with the reason")
    async def health() -> Response:
        engine = client.info.engine if client.info else None
        status = {"status": client.state, "reason": client.reason, "engine": engine}
        return json_response(200 if client.state == "ready" else 503, status)

    @app.get("/health/live", summary="Whether a restart would not help: 503 once the engine has failed")
    async def live() -> Response:
        alive = client.state != "failed"
        return json_response(200 if alive else 503, {"status": "live" if alive else "failed", "reason": client.reason})

    @app.get("/stats", summary="Totals, the queue, the cache, and every limit")
    async def stats() -> Response:
        return json_response(200, client.stats() | {"limits": limits(config)})

    @app.get("/", summary="What is where")
    async def index() -> Response:
        routes = {"/generate": "POST"} | dict.fromkeys(("/health", "/health/live", "/stats", "/openapi.json"), "GET")
        return json_response(200, {"name": "gradus", "version": gradus.__version__, "routes": routes})

    return app


async def all_completions(stream: Stream) -> list[Completion]:
    """Wait for every sample's completion, in order. Raises the error of any sample that failed."""
    completions: dict[int, Completion] = {}
    while not stream.done:
        for delta in await stream.receive():
            if delta.completion is not None:
                completions[delta.index] = delta.completion
    for completion in completions.values():
        if error := failure_of(completion):
            raise error
    return [completions[index] for index in sorted(completions)]


def model_name(client: EngineClient) -> str:
    return client.info.model if client.info else client.config.model


def json_response(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, media_type="application/json")


# -- errors ------------------------------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with JSON of one shape. The log keeps the traceback of an unexpected exception."""

    async def on_error(request: Request, error: Exception) -> Response:
        status, content, headers = error_of(error)
        return json_response(status, content, headers)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = http.HTTPStatus(error.status_code).phrase.lower()
        message = f"{request.method} {request.url.path[:100]}: {phrase}; GET / lists the routes"
        return json_response(error.status_code, http_error(error.status_code, message), dict(error.headers or {}))

    async def on_client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(GradusError, on_error)
    app.add_exception_handler(Exception, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(ClientDisconnect, on_client_gone)


class HeaderLimits:
    """Refuses a request with more headers than any real client sends. The parser itself stops far larger ones."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        size = sum(len(name) + len(value) for name, value in headers)
        if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            message = f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all, got {len(headers)} of {size}"
            await json_response(431, http_error(431, message), {"connection": "close"})(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class OwnRequests:
    """Refuses a request that names another host than this server, or that comes from another site's page.

    The status is 403 in both cases. 421 (misdirected request) would fit the first, but invites the client to retry.
    """

    def __init__(self, app: ASGIApp, hosts: OwnHosts) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        refusal = self.hosts.refusal(scope["headers"], server and server[0]) if "headers" in scope else None
        if refusal is not None:
            await json_response(403, http_error(403, refusal), {"connection": "close"})(scope, receive, send)
        else:
            await self.app(scope, receive, send)
