"""A replica: the server's application on a port of its own, over an engine process of its own, with Ray's hooks.

Ray calls `admit` for each request, and counts it until the generator ends; `check_health`, and replaces a replica that
raises; `record_routing_stats`, and gives the result to the routers; and, once no request runs or the drain timeout is
over, `__del__`.
"""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradus.deploy.front import TICKET, Admitted
from gradus.deploy.prefixes import RecentPrefixes
from gradus.errors import ConfigError
from gradus.server import logs
from gradus.server.client import EngineClient
from gradus.server.config import ServerConfig
from gradus.server.http.answers import refused
from gradus.server.http.app import create_app
from gradus.server.http.keys import VARIABLE, Keys
from gradus.server.serve import Server

HASHES, VERSION = "hashes", "version"  # the keys of the published statistics
CLAIM_S = 10.0  # for a front to send a request that was admitted


class Replica:
    """host: the address to listen on, which fronts can reach. keyed: the deployment was started with API keys, so a
    replica without any must not start."""

    def __init__(self, config: ServerConfig, loader: str, keyed: bool, host: str = "127.0.0.1") -> None:
        if keyed and not Keys.of(config):
            raise ConfigError(
                f"the deployment has API keys, but a replica's machine has no file of keys and no {VARIABLE}"
            )
        logs.set_up(config)
        self._client = EngineClient(config, loader)
        self._tickets = Tickets(create_app(self._client, config), self._served)
        self._server = ReplicaServer(config, self._client, self._tickets)
        self._listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._prefixes = RecentPrefixes()
        self._version = 0

    async def start(self) -> None:
        """Listen, and load the model. Raises the GradusError that ended loading, or RuntimeError."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.01)
        await self._client.loaded()

    async def admit(self, hashes: tuple[int, ...]) -> AsyncGenerator[Admitted, None]:
        """Admit one request: yield where to send it, and end when it has ended.

        hashes: of the prompt's beginning, published once it was served.
        """
        host, port = self._listening.getsockname()[:2]
        with self._tickets.new(hashes) as (ticket, request):
            yield Admitted(host, port, ticket)
            try:
                await asyncio.wait_for(request.begun.wait(), CLAIM_S)
            except TimeoutError:
                return
            await request.ended.wait()

    def _served(self, hashes: tuple[int, ...]) -> None:
        """Record that the engine has taken a prompt."""
        self._prefixes.add(hashes)
        self._version += 1

    def check_health(self) -> None:
        """Raise if only a new replica helps. A replica that restarts its engine answers 503 meanwhile, and is kept."""
        if self._client.state == "failed":
            raise RuntimeError(self._client.reason)

    def record_routing_stats(self) -> dict[str, Any]:
        """Publish the prefixes that were served recently, and a version that changes with them."""
        return {VERSION: self._version, HASHES: self._prefixes.published()}

    async def close(self) -> None:
        """End what still runs, and the engine's process."""
        await self._client.drain(0.0)
        self._server.should_exit = True
        await self._serving


class ReplicaServer(Server):
    """The server of `gradus serve`, without its signals and its word at the start: both are Ray's here."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def _announce(self, host: str, port: int) -> None:
        pass


@dataclass(slots=True)
class OneRequest:
    """A request that was admitted."""

    hashes: tuple[int, ...]
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Tickets:
    """Admits requests that carry a ticket, each once: the port is for fronts alone, and Ray counts what they send."""

    def __init__(self, app: ASGIApp, served: Callable[[tuple[int, ...]], None]) -> None:
        self._app, self._served = app, served
        self._open: dict[bytes, OneRequest] = {}

    @contextmanager
    def new(self, hashes: tuple[int, ...]) -> Iterator[tuple[str, OneRequest]]:
        ticket, request = secrets.token_hex(16), OneRequest(hashes)
        self._open[ticket.encode()] = request
        try:
            yield ticket, request
        finally:
            self._open.pop(ticket.encode(), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        ticket = next((value for name, value in scope["headers"] if name == TICKET), b"")
        request = self._open.pop(ticket, None)
        if request is None:
            return await refused(403, "this port is for the front alone", scope)(scope, receive, send)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200 and request.hashes:
                self._served(request.hashes)
            await send(message)

        request.begun.set()
        try:
            await self._app(scope, receive, noting)
        finally:
            request.ended.set()
        return None
