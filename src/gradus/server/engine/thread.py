"""The engine loop on a thread of the server's process, for the phases of the course and for a student's engine. A
thread suffices there: a step spends most of its time in kernels that release Python's lock."""

import asyncio
import queue
import threading
from collections.abc import Callable

from gradus.server.config import ServerConfig
from gradus.server.engine.compiling import Compiled
from gradus.server.engine.loop import run_engine
from gradus.server.engine.messages import Command, EngineMessage, Stop


class EngineThread:
    """A `Link` to an engine on a thread, which ends after a `Stop`. A thread inside a step cannot be killed, so the
    engine is not restarted."""

    restarts = False

    def __init__(
        self,
        loader: str,
        config: ServerConfig,
        receive: Callable[[EngineMessage], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._receive = receive
        self._loop = loop
        self._commands: queue.SimpleQueue[Command | Compiled] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=run_engine, args=(loader, config, self._commands, self._post), name="engine", daemon=True
        )

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, share: tuple[int, int] = (1, 1)) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def kill(self) -> None:
        self.send(Stop())  # if the step returns after all, no other may follow

    def rest(self) -> None:
        """Do nothing: a thread that has ended cannot be started again."""

    async def close(self, patience: float) -> bool:
        self.send(Stop())
        if self.alive:
            await asyncio.to_thread(self._thread.join, patience)
        return not self.alive

    def _post(self, message: EngineMessage) -> None:
        try:
            self._loop.call_soon_threadsafe(self._receive, message)
        except RuntimeError:  # the event loop is closed, so no report will be read
            self.send(Stop())
