"""The routes. Each parses, submits, waits and answers. Every error is an exception."""

import asyncio
import http
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

import gradus
from gradus import extras
from gradus.cache.disk.folder import secret_of
from gradus.errors import GradusError
from gradus.server.api.anthropic.request import Messages
from gradus.server.api.chat import ChatCompletion
from gradus.server.api.completions import Completions
from gradus.server.api.errors import Problem, failure_of, problem_of
from gradus.server.api.fields import MOST_NAMED
from gradus.server.api.generate import Generate
from gradus.server.api.openapi import openapi_of_generate
from gradus.server.api.responses.body import Responses
from gradus.server.api.schemas import openapi_of
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.exchange import Exchange
from gradus.server.failures import ClientGone
from gradus.server.http.access import Access, admitted, asks_for_page
from gradus.server.http.answers import json_response, page_response, problem_response, refused
from gradus.server.http.bodies import Bodies, BodyLog
from gradus.server.http.body import read_json
from gradus.server.http.hosts import OwnHosts
from gradus.server.http.keys import Keys
from gradus.server.http.model_routes import add_model_routes, known
from gradus.server.http.record import REQUEST_ID, Records, record_of
from gradus.server.http.slices import JsonInSlices
from gradus.server.http.streaming import STAGE_S, EventStream, cancelled_with_client
from gradus.server.http.watch.routes import add_xray
from gradus.server.limits import MAX_HEADER_BYTES, MAX_HEADERS, body_limit, check_logprobs, limits, logprobs_limit
from gradus.server.metrics.exposition import CONTENT_TYPE, Exposition
from gradus.server.models.registry import Models
from gradus.server.page.document import document
from gradus.server.results import Stream
from gradus.text.completion import Completion

if TYPE_CHECKING:
    from gradus.server.traces.spans import Tracer

Reader = Callable[[Any, EngineClient], Exchange]
"""Checks parsed JSON of one protocol. Raises RequestError, or Unavailable while the model loads."""

IGNORED = "x-gradus-ignored"  # the header that names fields without effect
OPENED_BY = {"/tokenizer_info": "--tokenizer-info"}
"""Routes that an option opens."""
CLIENT_CLOSED_REQUEST = 499  # nginx's status for an answer whose client has left; it appears only in logs


def create_app(client: EngineClient, config: ServerConfig, models: Models | None = None) -> FastAPI:
    """Make the application. It starts the clients on its own event loop, and closes them on shutdown.

    client: the first model's, or the only one's. models: all; None: that one alone.
    """
    served = models or Models(client)

    tracer, end_traces = _traces(config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served.start()
        yield
        await served.close()
        await end_traces()

    # the interactive documentation pages load scripts from elsewhere; the schema itself is at /openapi.json
    app = FastAPI(
        title="Gradus",
        version=gradus.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead wherever the Host header says
    )
    _add_middleware(app, client, config)
    _add_error_handlers(app)

    def route(path: str, read: Reader, summary: str) -> None:
        async def described() -> Response:
            raise AssertionError("the route's own application answers")

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await respond(Request(scope, receive), read, served, config)
            await response(scope, receive, send)

        extra = openapi_of_generate(config) if path == "/generate" else openapi_of(path, config)
        app.post(path, summary=summary, openapi_extra=extra)(described)
        # FastAPI's own would look for dependencies and parameters, which takes longer than a token
        added = next(route for route in app.routes if isinstance(route, APIRoute) and route.path == path)
        added.app = answer if tracer is None else traced(answer, tracer, path)

    route("/generate", read_generate, "Continue a prompt")
    route("/v1/chat/completions", ChatCompletion.parse, "Answer a conversation, in OpenAI's protocol of chats")
    route("/v1/responses", Responses.parse, "Answer a conversation, in OpenAI's protocol of responses")
    route("/v1/completions", Completions.parse, "Continue prompts, as OpenAI's completions do")
    route("/v1/messages", Messages.parse, "Answer a conversation, in Anthropic's protocol")
    add_model_routes(app, served, config)

    _add_reports(app, served, config)
    add_xray(app, served, config)
    return app


def _traces(config: ServerConfig) -> "tuple[Tracer | None, Callable[[], Awaitable[None]]]":
    """Make what traces requests, and what sends the last spans; without an endpoint, nothing of it is imported."""
    if config.otlp_traces_endpoint is None:
        return None, partial(asyncio.sleep, 0)
    extras.require("otel", "--otlp-traces-endpoint")
    from gradus.server.traces.export import Export
    from gradus.server.traces.spans import Tracer

    export = Export(config)
    return Tracer(export.provider, config), export.close


def traced(answer: ASGIApp, tracer: "Tracer", path: str) -> ASGIApp:
    """Give each request of a route its span. It is the route's own: a sender without a key makes none."""

    async def followed(scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        with tracer.request(path, scope, record.id, record.label) as record.trace:
            await answer(scope, receive, send)

    return followed


def _secret_of_prefixes(config: ServerConfig) -> bytes | None:
    """Return the secret of the directory that keeps prefixes. Raises ConfigError if it cannot be used."""
    path: str | None = config.keywords()["prefix_dir"]
    return None if path is None else secret_of(Path(path).expanduser())


def _add_middleware(app: FastAPI, client: EngineClient, config: ServerConfig) -> None:
    """Add the middleware, from the innermost to the outermost. All of it is plain ASGI."""
    if config.log_bodies is not None:
        app.add_middleware(Bodies, file=BodyLog(config.log_bodies))
    keys = Keys.of(config)
    app.add_middleware(
        Access, keys=keys, defaults=config.key_limits, secret=_secret_of_prefixes(config), page=config.page
    )
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID, IGNORED, "retry-after"),
        )
    hosts = OwnHosts(config.host, config.allowed_hosts, config.cors_origins, secure=config.tls_cert is not None)
    app.add_middleware(OwnRequests, hosts=hosts)
    app.add_middleware(HeaderLimits)
    app.add_middleware(Heads)
    app.add_middleware(Records, meter=client.meter, keys=keys, lines=config.log_requests)


def _add_reports(app: FastAPI, models: Models, config: ServerConfig) -> None:
    """Add the routes that only report."""

    @app.get("/health", summary="Whether requests are taken: 200, or 503 with the reason")
    @app.get("/health/ready", summary="The same, by the name that orchestrators expect")
    @app.get("/ping", summary="The same, by the name that SageMaker expects")
    @app.post("/ping", include_in_schema=False)
    async def health() -> Response:
        client = next((one for one in models if not one.supervisor.ready), models.first)
        status = health_of(client)
        if len(models) > 1:
            status["models"] = {one.model: health_of(one) for one in models}
        refusal = client.supervisor.refusal
        again = {"retry-after": str(refusal.retry_after)} if refusal and refusal.retry_after else {}
        return json_response(200 if client.supervisor.ready else 503, status, again)

    @app.get("/health/live", summary="Whether a restart would not help: 503 once the engine has failed")
    async def live() -> Response:
        client = next((one for one in models if one.state == "failed"), models.first)
        alive = client.state != "failed"
        return json_response(200 if alive else 503, {"status": "live" if alive else "failed", "reason": client.reason})

    @app.get("/version", summary="The version of Gradus")
    async def version() -> Response:
        return json_response(200, {"version": gradus.__version__})

    @app.get("/stats", summary="Totals, the queue, the cache, and every limit")
    async def stats() -> Response:
        client = models.first
        if len(models) == 1:
            return json_response(200, client.stats() | {"limits": limits(config, client.info)})
        found = {one.model: one.stats() | {"limits": limits(config, one.info)} for one in models}
        return json_response(200, {"models": found, "loaded": [one.model for one in models if one.loaded_now]})

    exposition = Exposition([client.measured for client in models], alias=config.metrics_alias == "vllm")

    @app.get("/metrics", summary="Measurements, as Prometheus's text", response_class=Metrics)
    async def metrics() -> Response:
        return Metrics(exposition.text())

    @app.get("/", summary="What is where; to a browser, the page")
    async def index(request: Request) -> Response:
        if config.page and asks_for_page(request.scope):
            return page_response(document(), request.headers.get("if-none-match", ""))
        methods = {
            route.path: " ".join(sorted(route.methods or ())) for route in app.routes if isinstance(route, APIRoute)
        }
        routes = methods | {"/openapi.json": "GET"}
        vary = {"vary": "accept"} if config.page else {}
        return json_response(200, {"name": "gradus", "version": gradus.__version__, "routes": routes}, vary)


def health_of(client: EngineClient) -> dict[str, Any]:
    """Describe the state of a model's engine, and what its load is at, if there is one."""
    engine = client.info.engine if client.info else None
    progress = client.supervisor.progress
    found = {"status": client.state, "reason": client.reason, "engine": engine}
    return found if progress is None else found | {"progress": progress}


class Metrics(Response):
    media_type = CONTENT_TYPE


def read_generate(body: Any, client: EngineClient) -> Exchange:
    return Generate.parse(body, client.config, client.model)


async def respond(request: Request, read: Reader, models: Models, config: ServerConfig) -> Response:
    """Answer a body of `read`'s protocol, whole or as a stream of events."""
    body = await read_json(request, max_bytes=body_limit(config, models.largest()), timeout=config.receive_timeout)
    client = models.chosen(body)
    await known(request, client)
    exchange, record = read(body, client), record_of(request.scope)
    record.meter = client.meter
    if client.info is not None:
        check_logprobs(exchange.asks, client.info.limits.context_length, logprobs_limit(config, client.info))
    stream = client.submit(*admitted(record, exchange.asks), key=record.key, name=record.id)
    record.follow(stream.tally)
    if record.trace is not None:
        record.trace.follow(exchange, stream, client.model)
    async with cancelled_with_client(request.receive, stream):
        # a client that streams learns after a second what it waits for
        await stream.accepted(STAGE_S if exchange.stream and client.supervisor.holds(stream.handles[0]) else None)
        warnings = without_effect(exchange, stream, client)
        encoder = exchange.encoder(stream)
        if not exchange.stream:
            return JsonInSlices(encoder.whole(await all_completions(stream)), warnings, config.write_timeout)
    return EventStream(stream, encoder, config, warnings, client.supervisor.waking)


def without_effect(exchange: Exchange, stream: Stream, client: EngineClient) -> dict[str, str]:
    """Make the header that names fields of the body, and keywords of its schemas, without effect on the answer."""
    names = dict.fromkeys(exchange.ignored)
    for constraint in {request.params.structured for request in stream.requests.values()}:
        if constraint is not None:
            names |= dict.fromkeys(client.front_end.grammars.unkept(constraint)[:MOST_NAMED])
    return {IGNORED: ", ".join(names)} if names else {}


async def all_completions(stream: Stream) -> list[Completion]:
    """Wait for every sample's completion, in order. Raises the error of any sample that failed: first of all a fault,
    which has made the client cancel the others."""
    completions = await stream.completions()
    for completion in sorted(completions, key=lambda each: each.finish_reason != "error"):
        if error := failure_of(completion):
            raise error
    return completions


# -- errors ------------------------------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with JSON of one shape. The log keeps the traceback of an unexpected exception."""

    async def on_error(request: Request, error: Exception) -> Response:
        return problem_response(problem_of(error), request.scope)

    async def on_defect(request: Request, error: Exception) -> Response:
        """Answer outside all middleware, which has already seen the exception."""
        answer = await on_error(request, error)
        answer.headers[REQUEST_ID] = record_of(request.scope).id
        return answer

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = http.HTTPStatus(error.status_code).phrase.lower()
        path = request.scope["path"]  # not url.path, which the Host header can change
        option = OPENED_BY.get(path) if error.status_code == 404 else None
        what = f"this server does not answer it: serve with {option}" if option else phrase
        message = f"{request.method} {path[:100]}: {what}; GET / lists the routes"
        allowed = {"allow": methods_of(app, path)} if error.status_code == 405 else error.headers or {}
        return problem_response(Problem(error.status_code, "invalid_request", message, headers=allowed), request.scope)

    async def on_client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(GradusError, on_error)
    app.add_exception_handler(Exception, on_defect)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(ClientDisconnect, on_client_gone)


def methods_of(app: FastAPI, path: str) -> str:
    """List the methods of all routes with a path, for the header `Allow`."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    methods = {method for route in routes for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


class Heads:
    """Answers HEAD as GET: the connection, which sees the real method, leaves the body out.

    An answer without an end looks for "gradus.head" in its scope, and ends after its headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self.app(scope, receive, send)
            return
        asked = {**scope, "method": "GET", "gradus.head": True}
        try:
            await self.app(asked, receive, send)
        finally:
            scope["route"] = asked.get("route")  # for the log and the metrics


class HeaderLimits:
    """Refuses a request with more headers than any real client sends. The parser itself stops far larger ones."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        size = sum(len(name) + len(value) for name, value in headers)
        if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            message = f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all, got {len(headers)} of {size}"
            await refused(431, message, scope)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class OwnRequests:
    """Refuses a request that names another host, or that comes from another site's page.

    The status is 403 in both cases. 421 (misdirected request) would fit the first, but invites the client to retry.
    """

    def __init__(self, app: ASGIApp, hosts: OwnHosts) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        refusal = self.hosts.refusal(scope["headers"], server and server[0]) if "headers" in scope else None
        if refusal is not None:
            await refused(403, refusal, scope)(scope, receive, send)
        else:
            await self.app(scope, receive, send)
