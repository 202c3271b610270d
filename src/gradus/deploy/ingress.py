"""What Ray's proxy calls: reads a request's body, hashes its prompt, and forwards the messages of the chosen replica.

The replica checks everything, as the same application does behind `gradus serve`. The ingress reads at most as much as
the replica would accept, and no body at all of a sender without an API key where keys are needed.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gradus.deploy.prefixes import prompt_hashes
from gradus.deploy.relay import Message, plain_scope
from gradus.errors import GradusError
from gradus.server.api.errors import Problem, problem_of, shape_of
from gradus.server.api.frames import encode
from gradus.server.config import ServerConfig
from gradus.server.http.access import credentials
from gradus.server.http.answers import problem_response
from gradus.server.http.keys import Keys

log = logging.getLogger(__name__)

LARGEST_BODY = 64 << 20
"""Most bytes of a body where the configuration names no limit; the replica, which knows the context, accepts less."""

Answer = Callable[[dict[str, Any], bytes, tuple[int, ...]], AsyncGenerator[list[Message], None]]
"""Sends a request to a replica: its scope, body, and hashes of its prompt's beginning."""


LOST = Problem(503, "replica_lost", "the replica that served this request has stopped", retry_after=1)


class Ingress:
    """Answers requests with a replica's messages. secret: the key of the hashes, the same in all ingresses."""

    def __init__(self, config: ServerConfig, secret: bytes, answer: Answer) -> None:
        self._keys = Keys.of(config)
        self._most = config.max_body_bytes or LARGEST_BODY
        self._secret = secret
        self._answer = answer

    async def __call__(self, request: Request) -> Response:
        scope, presented = request.scope, credentials(request.scope)
        body = b""
        if not self._keys or any(self._keys.find(text) for text in presented):
            try:
                body = await self._read(request)
            except ClientDisconnect:
                return Response(status_code=499)
        if len(body) > self._most:
            return problem_response(
                Problem(413, "invalid_request", f"the body is larger than {self._most} bytes"), scope["path"]
            )
        hashes = prompt_hashes(body, self._secret, "\n".join(presented if self._keys else ()))
        return Forwarded(scope["path"], self._answer(plain_scope(scope), body, hashes))

    async def _read(self, request: Request) -> bytes:
        """Read the body, or a little more than the most that is accepted."""
        parts, size = [], 0
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > self._most:
                break
        return b"".join(parts)


class Forwarded(Response):
    """A replica's answer. If the replica dies, the client gets a 503, or an error as the stream's last event."""

    def __init__(self, path: str, messages: AsyncGenerator[list[Message], None]) -> None:
        super().__init__()
        self._path = path
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Message | None = None
        ended = False
        try:
            async with aclosing(self._messages) as batches:
                async for messages in batches:
                    for message in joined(messages):
                        begun = begun or message
                        ended = message["type"] == "http.response.body" and not message.get("more_body", False)
                        await send(message)
        except Exception as error:
            log.warning("an answer was not finished: %s", type(error).__name__)
            problem = problem_of(error) if isinstance(error, GradusError) else LOST
            if begun is None:
                await problem_response(problem, self._path)(scope, receive, send)
            elif ended:  # a bug in the replica, which has answered and logged it
                return
            elif is_event_stream(begun):
                event = b"event: error\ndata: " + encode(shape_of(self._path)(problem)) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": False})
            else:
                raise


def joined(messages: list[Message]) -> list[Message]:
    """Join pieces of a body that follow one another: each message costs the proxy the same, whatever its size."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is not None and message["type"] == last["type"] == "http.response.body":
            last["body"] = last.get("body", b"") + message.get("body", b"")
            last["more_body"] = message.get("more_body", False)
        else:
            found.append(message)
    return found


def is_event_stream(start: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"])
