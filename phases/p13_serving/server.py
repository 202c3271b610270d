"""The process: an engine's thread, an event loop, a socket, and signals."""

import asyncio
from types import FrameType
from typing import Any

import uvicorn

from gradus.engine.core import Core
from gradus.server.config import ServerConfig
from phases.p13_serving.admission import Admission
from phases.p13_serving.app import create_app
from phases.p13_serving.desk import Desk
from phases.p13_serving.engine_thread import EngineThread, Report, Stop

QUIET: dict[str, Any] = {"access_log": False, "timeout_graceful_shutdown": 1}  # s, for the last bytes of connections


class Server(uvicorn.Server):
    """Drains at the first signal, where uvicorn stops listening: new requests then get the reason for their refusal.

    Create it on the event loop. places: the number of requests that may be inside, running or waiting.
    """

    def __init__(self, engine: Core, tokenizer: Any, model: str, places: int, settings: ServerConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = EngineThread(engine, self.post)
        self.desk = Desk(engine.limits, tokenizer, Admission(places), self.thread.inbox.put, settings.request_timeout)
        self.drain_s = settings.drain_timeout
        self.draining: asyncio.Task[None] | None = None
        app, level = create_app(self.desk, model), settings.log_level
        super().__init__(uvicorn.Config(app, settings.host, settings.port, log_level=level, **QUIET))

    def post(self, report: Report) -> None:
        """Pass a report to the event loop: the only method that another thread, the engine's, may call."""
        self.loop.call_soon_threadsafe(self.desk.on_report, report)

    async def serve(self, sockets: Any = None) -> None:
        """Run until a signal arrives."""
        self.thread.start()
        try:
            await super().serve(sockets)
        finally:
            self.thread.inbox.put(Stop())
            await asyncio.to_thread(self.thread.join)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leave a message for the event loop, and no more: a signal may interrupt any line of ours."""
        self.loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Drain; on the second call, exit at once."""
        if self.draining is None:
            self.draining = self.loop.create_task(self.drain())
        else:
            self.should_exit = self.force_exit = True

    async def drain(self) -> None:
        await self.desk.drain(self.drain_s)
        self.should_exit = True
