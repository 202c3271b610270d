"""The front end's connection to the engine, wherever that runs.

The final engine has a process of its own (child.py): its Python never waits for the front end's lock, a step that
crashes or hangs takes nothing else down, and it can be started again. A phase of the course, or a student's engine,
runs on a thread (thread.py): its faults show up in a debugger, and nothing has to be importable elsewhere.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gradus.server.config import ServerConfig
from gradus.server.engine.child import EngineProcess
from gradus.server.engine.messages import Command, EngineMessage
from gradus.server.engine.thread import EngineThread


class Link(Protocol):
    """A connection to the engine. Create it and call it on the event loop, where the engine's messages arrive too.

    restarts: whether `start` may be called again after the engine has failed or was killed.
    """

    restarts: bool

    def start(self, share: tuple[int, int] = (1, 1)) -> None:
        """Begin to load the engine. Its messages begin with Loading, until Loaded or LoadFailed. share: as in
        ServerConfig."""

    def send(self, command: Command) -> None:
        """Send a command, which wakes a sleeping engine. Without an engine it is dropped."""

    def kill(self) -> None:
        """Kill an engine that hangs, if that is possible. No message follows."""

    def rest(self) -> None:
        """End an idle engine, if it can be started again: its memory is then free. No message follows."""

    async def close(self, patience: float) -> bool:
        """Stop the engine within `patience` seconds. Returns False if it still runs."""


MakeLink = Callable[
    [str, ServerConfig, Callable[[EngineMessage], None], asyncio.AbstractEventLoop],
    Link,
]
"""(the loader's module, the configuration, the receiver of the engine's messages, the event loop)"""


def link_for(config: ServerConfig) -> MakeLink:
    return EngineProcess if config.phase is None else EngineThread
