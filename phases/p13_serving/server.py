"""The process: an engine's thread, an event loop, a socket, and what a signal does."""

import asyncio
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from gradus.engine.core import Core
from gradus.server.config import ServerConfig
from phases.p13_serving.admission import Admission
from phases.p13_serving.app import create_app
from phases.p13_serving.desk import Desk
from phases.p13_serving.engine_thread import EngineThread, Stop

LAST_BYTES_S = 1  # for connections, once no request is inside


class Server(uvicorn.Server):
    """uvicorn stops listening at the first signal. This one drains first, so that new requests hear why."""

    def __init__(self, config: uvicorn.Config, desk: Desk, drain_s: float) -> None:
        super().__init__(config)
        self.desk, self.drain_s, self.loop = desk, drain_s, asyncio.get_running_loop()
        self.draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal may interrupt any line of ours, so it only leaves a message for the event loop."""
        self.loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Drain. The second time, exit at once."""
        if self.draining is None:
            self.draining = self.loop.create_task(self.drain())
        else:
            self.should_exit = self.force_exit = True

    async def drain(self) -> None:
        await self.desk.drain(self.drain_s)
        self.should_exit = True


async def serve(
    engine: Core,
    tokenizer: Any,
    model: str,
    places: int,
    settings: ServerConfig,
    note: Callable[[Server], object] | None = None,
) -> None:
    """Serve until a signal comes. places: the number of requests that may be inside, running or waiting. note: called
    with the server before it runs."""
    loop = asyncio.get_running_loop()
    thread = EngineThread(engine, lambda report: loop.call_soon_threadsafe(desk.on_report, report))
    desk = Desk(engine.limits, tokenizer, Admission(places), thread.inbox.put, settings.request_timeout)
    said = {"access_log": False, "log_level": settings.log_level}
    config = uvicorn.Config(
        create_app(desk, model), settings.host, settings.port, timeout_graceful_shutdown=LAST_BYTES_S, **said
    )
    server = Server(config, desk, settings.drain_timeout)
    if note is not None:
        note(server)
    thread.start()
    try:
        await server.serve()
    finally:
        thread.inbox.put(Stop())
        await asyncio.to_thread(thread.join)
