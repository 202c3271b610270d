"""The front end's connection to the engine, wherever that runs.

The final engine has a process of its own (child.py): its Python never waits for the front end's lock, a step that
crashes or hangs takes nothing else along, and it can be started again. A phase of the course, and a student's engine,
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
    """Made on the event loop, like every call. The engine's messages are delivered there.

    restarts: whether `start` may be called again once the engine has failed, or was killed.
    """

    restarts: bool

    def start(self) -> None:
        """Begin to load the engine. Its first message is Loaded or LoadFailed."""

    def send(self, command: Command) -> None:
        """Send a command, which wakes the engine if it sleeps. Dropped if no engine is there."""

    def kill(self) -> None:
        """End an engine that hangs, as far as that is possible. No message follows."""

    async def close(self, patience: float) -> bool:
        """Stop the engine within `patience` seconds. Returns False if something is left running."""


MakeLink = Callable[
    [str, ServerConfig, Callable[[EngineMessage], None], asyncio.AbstractEventLoop],
    Link,
]
"""(the loader's module, the configuration, what takes the engine's messages, the event loop)"""


def link_for(config: ServerConfig) -> MakeLink:
    return EngineProcess if config.phase is None else EngineThread
