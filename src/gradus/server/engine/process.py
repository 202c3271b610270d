"""The engine's process: `python -m gradus.server.engine.process SOCKET`, started by child.py.

The main thread runs the engine loop, and writes its messages to the socket directly: a front end that does not read
makes the engine wait (backpressure). A second thread reads commands. When the socket closes, the front end is gone, and
this process ends at once, even inside a step. Linux kills it even if that thread cannot run.

This process ignores signals: a Ctrl-C at a terminal, or a supervisor that stops the whole group, reaches both
processes, but the front end alone decides how long running requests may take.
"""

import logging
import os
import queue
import signal
import socket
import sys
import threading
from typing import Protocol, runtime_checkable

from gradus.device.peer import die_with
from gradus.server import logs
from gradus.server.config import ServerConfig
from gradus.server.engine.compiling import Compiled
from gradus.server.engine.loop import run_engine
from gradus.server.engine.messages import Command, EngineMessage
from gradus.server.engine.wire import VERSION, Hello, Load, WireError, commands_and_load, frame

log = logging.getLogger("gradus.server.engine.process")  # __name__ is __main__ here

AT_ONCE = 1 << 18  # bytes read from the socket

# A thread that runs Python, to check a schema, keeps its lock that long. A step waits for it after every call that
# releases the lock: with Python's own 5 ms, eight such calls would take 40 ms.
SWITCH_S = 0.0005


def main(path: str) -> None:
    die_with(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is reserved for the front end's ready line
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(path)
    connected.sendall(frame(Hello(VERSION, os.getpid())))
    front_end = FrontEndSocket(connected)
    load = front_end.load()
    config = ServerConfig(**load.settings)
    logs.set_up(config)
    sys.setswitchinterval(SWITCH_S)
    threading.Thread(target=front_end.read, name="commands", daemon=True).start()
    core = run_engine(load.loader, config, front_end.commands, front_end.post)
    if isinstance(core, Closing):  # it may have processes of its own
        core.close()
    leave(1 if core is None else 0)


@runtime_checkable
class Closing(Protocol):
    def close(self) -> None: ...


class FrontEndSocket:
    """The front end, as the engine's process sees it: a source of commands, and the receiver of messages."""

    def __init__(self, connected: socket.socket) -> None:
        self.commands: queue.SimpleQueue[Command | Compiled] = queue.SimpleQueue()
        self._socket = connected
        self._frames = commands_and_load()

    def load(self) -> Load:
        """Wait for the first message."""
        while not (received := list(self._frames.feed(self._receive()))):
            pass
        first, *others = received
        if not isinstance(first, Load) or first.version != VERSION:
            raise WireError(f"the front end is not of version {VERSION}")
        for message in others:
            self._queue(message)
        return first

    def read(self) -> None:
        """Queue commands until the socket closes; then end the process."""
        try:
            while True:
                for message in self._frames.feed(self._receive()):
                    self._queue(message)
        except (WireError, OSError) as error:
            log.error("the front end's connection has ended: %s", error)
        finally:
            leave(1)

    def _queue(self, message: Load | Command) -> None:
        if isinstance(message, Load):
            raise WireError("a second engine was asked for")
        self.commands.put(message)

    def _receive(self) -> bytes:
        received = self._socket.recv(AT_ONCE)
        if not received:
            leave(1)
        return received

    def post(self, message: EngineMessage) -> None:
        """Send a message; wait if the front end is behind."""
        try:
            self._socket.sendall(frame(message))
        except OSError:  # closed
            leave(1)


def leave(code: int) -> None:
    """End the process without waiting for anything, be it a running kernel or a library's threads."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
