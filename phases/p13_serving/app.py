"""The routes: parse, submit, answer. Every error is an exception until it becomes a status."""

import asyncio
import json
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gradus.engine.request import SamplingParams
from gradus.errors import GradusError, RequestError
from phases.p13_serving.admission import Refused
from phases.p13_serving.desk import Desk
from phases.p13_serving.events import DONE, encode, event
from phases.p13_serving.stream import News, Stream

FIELDS = ("max_tokens", "temperature", "seed", "stop")
MOST_BYTES = 1 << 20
CUT_OFF = {"timeout": ("timeout", 504), "cancelled": ("draining", 503), "error": ("internal_error", 500)}
"""One word for programs, and the status, by the reason that cut an answer off."""


def create_app(desk: Desk, model: str) -> Starlette:
    async def generate(request: Request) -> Answer:
        prompt, params, streaming = parsed(await body_of(request))
        return Answer(desk, await desk.submit(prompt, params), model, streaming)

    async def ready(request: Request) -> Response:
        return as_json({"status": desk.state}, 200 if desk.state == "ready" else 503)

    async def live(request: Request) -> Response:
        return as_json({"status": desk.state}, 503 if desk.state == "failed" else 200)

    routes = [Route("/generate", generate, methods=["POST"]), Route("/health", ready), Route("/health/live", live)]
    return Starlette(routes=routes, exception_handlers={GradusError: refusal, ClientDisconnect: refusal})


async def body_of(request: Request) -> Any:
    """Read JSON, counting the bytes as they arrive: a client may announce a wrong number."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Refused(f"the body may have at most {MOST_BYTES} bytes", "invalid_request", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("the body must be JSON", "invalid_request", 400) from error


def parsed(body: Any) -> tuple[str | list[int], SamplingParams, bool]:
    if not isinstance(body, dict) or not isinstance(body.get("prompt"), str | list):
        raise RequestError("prompt must be text or a list of token ids", param="prompt")
    if unknown := body.keys() - {"prompt", "stream", *FIELDS}:
        raise RequestError(f"unknown field {min(unknown)[:60]!r}", param=min(unknown)[:60])
    params = SamplingParams(**{name: body[name] for name in FIELDS if body.get(name) is not None})
    return body["prompt"], params, body.get("stream") is True


class Answer:
    """The response to one request: an ASGI application that runs until the answer has ended, or its client has left."""

    def __init__(self, desk: Desk, stream: Stream, model: str, streaming: bool) -> None:
        self.desk, self.stream, self.model, self.streaming = desk, stream, model, streaming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self.watch(receive))
        try:
            news = await self.stream.read(whole=not self.streaming)  # a refusal raised here can still become a status
            if self.streaming:
                await self.send_events(send, news)
            elif (reason := self.stream.finish_reason) in CUT_OFF:
                raise Refused(f"the answer was cut off: {reason}", *CUT_OFF[reason])
            else:
                await as_json(self.content(news))(scope, receive, send)
        finally:
            watcher.cancel()
            self.desk.cancel(self.stream)

    async def watch(self, receive: Receive) -> None:
        """Wait until the client leaves, and cancel its request: the rest of the answer has no reader."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.desk.cancel(self.stream)

    async def send_events(self, send: Send, news: News) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        frame = event(encode(self.content(news)))
        while not self.stream.over:
            await send({"type": "http.response.body", "body": frame, "more_body": True})  # waits for a slow reader
            frame = event(encode(self.content(await self.stream.read())))
        await send({"type": "http.response.body", "body": frame + DONE})

    def content(self, news: News) -> dict[str, Any]:
        """Format the news; the last one also says how the answer ended."""
        stream, prompt, made = self.stream, len(self.stream.request.prompt), self.stream.generated
        content = {"id": stream.request.id, "index": 0, "text": news[0], "token_ids": news[1]}
        if stream.over:
            usage = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
            content |= {"finish_reason": stream.finish_reason, "stop_reason": stream.stop_reason}
            content |= {"model": self.model, "usage": usage}
        return content


def as_json(content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(content), status, headers, media_type="application/json")


def refusal(request: Request, error: Exception) -> Response:
    status, kind, headers = 400, "invalid_request", {}
    if isinstance(error, Refused):
        status, kind = error.status, error.kind
        headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    told = {name: getattr(error, name, None) for name in ("param", "limit", "got")}
    return as_json({"error": {"message": str(error), "type": kind, **told, "code": status}}, status, headers)
