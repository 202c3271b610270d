"""The engine loop on a thread of the server's process. A thread suffices because a step spends its time in kernels that
release Python's lock. Only plain data passes between the two sides, so a process could replace the thread.
"""

import asyncio
import queue
import threading
from collections.abc import Callable

from gradus.server.config import ServerConfig
from gradus.server.engine.loop import run_engine
from gradus.server.engine.messages import Command, Message, Stop


class EngineThread(threading.Thread):
    """Loads an engine and runs it until it is sent `Stop`.

    loader: the name of the module that loads the engine. receive: called on `loop`, the event loop, with each message.
    """

    def __init__(
        self,
        loader: str,
        config: ServerConfig,
        receive: Callable[[Message], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._loader = loader
        self._config = config
        self._receive = receive
        self._loop = loop
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send(self, command: Command) -> None:
        """Send a command from the event loop. It wakes the thread at once if it sleeps."""
        self._commands.put(command)

    def run(self) -> None:
        run_engine(self._loader, self._config, self._commands, self._post)

    def _post(self, message: Message) -> None:
        try:
            self._loop.call_soon_threadsafe(self._receive, message)
        except RuntimeError:  # the event loop is closed, so no report will be read
            self.send(Stop())
