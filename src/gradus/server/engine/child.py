"""The engine's process, as the front end sees it: start, connection, messages, end.

The process is a new Python (process.py), not a fork, which would inherit threads and locks. It connects to a private
socket (wire.py), loads the engine, and then obeys commands. Its stderr is the front end's. However it ends, its end of
the socket closes, and the front end notices at once.
"""

import asyncio
import logging
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from typing import cast

import msgspec

from gradus.device import program
from gradus.server.config import ServerConfig
from gradus.server.engine.messages import (
    Command,
    EngineFailed,
    EngineMessage,
    Failure,
    LoadFailed,
    Loading,
    Message,
    Stop,
)
from gradus.server.engine.wire import VERSION, Hello, Load, PrivateSocket, WireError, check_peer, frame
from gradus.server.engine.wire import hello_and_messages as frames_of_an_engine

log = logging.getLogger(__name__)

GOODBYE_S = 10.0  # for an idle engine to release its memory
CONNECT_S = 60.0  # for a Python to start and connect, before it loads anything
LOOK_S = 0.01  # between two checks whether it has connected or ended
LAST_BREATH_S = 0.2  # for a process with a closed socket to exit by itself, so that its exit code says why


class EngineProcess:
    """A `Link` to an engine in a process of its own. Each `start` makes a new one."""

    restarts = True

    def __init__(
        self,
        loader: str,
        config: ServerConfig,
        receive: Callable[[EngineMessage], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._load = Load(VERSION, loader, asdict(config))
        self._receive = receive
        self._loop = loop
        self._child: Child | None = None
        self._ending: asyncio.Task[None] | None = None  # the last one's, which asyncio refers to weakly

    @property
    def pid(self) -> int | None:
        return None if self._child is None or self._child.process is None else self._child.process.pid

    def start(self, share: tuple[int, int] = (1, 1)) -> None:
        load = msgspec.structs.replace(self._load, settings=self._load.settings | {"share": share})
        self._child = Child(load, self._receive, self._loop, after=self._child)

    def send(self, command: Command) -> None:
        if self._child is not None:
            self._child.send(command)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def rest(self) -> None:
        if self._child is not None:
            self._ending = self._loop.create_task(self._child.close(GOODBYE_S))

    async def close(self, patience: float) -> bool:
        if self._child is not None:
            await self._child.close(patience)
        return True


class Child(asyncio.Protocol):
    """One process, from its start to its end. Its last message is LoadFailed or EngineFailed, unless it was killed.

    after: the previous process: this one needs its memory, and starts once it has ended.
    """

    def __init__(
        self,
        load: Load,
        receive: Callable[[EngineMessage], None],
        loop: asyncio.AbstractEventLoop,
        after: "Child | None" = None,
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._load = load
        self._receive = receive
        self._loop = loop
        self._frames = frames_of_an_engine()
        self._transport: asyncio.WriteTransport | None = None
        self._loading = True
        self._ended = False  # report nothing more
        self._closed = asyncio.Event()  # set when the connection is closed
        self._life = loop.create_task(self._live(after))

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def kill(self) -> None:
        self._ended = True
        if self.process is not None:
            self.process.kill()

    async def close(self, patience: float) -> None:
        """End the process with a `Stop`; kill it if that takes too long, or if it reads no commands yet."""
        self._ended = True
        if self._loading or self._transport is None:
            self.kill()
        else:
            self.send(Stop())
        try:
            await asyncio.wait_for(asyncio.shield(self._life), patience)
        except TimeoutError:
            log.warning("the engine's current step does not end: its process is killed")
            self.kill()
            await self._life

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _live(self, after: "Child | None") -> None:
        if after is not None:
            await after._life
        try:
            if await self._connect():
                await self._closed.wait()
            how = await self._bury()
        except OSError as error:
            how = f"could not be started: {error}"
        if self._ended:
            return
        if self._loading:
            self._deliver(LoadFailed(Failure("GradusError", f"the engine's process {how} before the model was loaded")))
        else:
            self._deliver(EngineFailed(Failure("GradusError", f"its process {how}")))

    async def _connect(self) -> bool:
        """Start the process, and wait until it has connected; return False if it never does. Remove the socket's
        file."""
        private = PrivateSocket()
        try:
            self.process = spawn(private.path)
            end = self._loop.time() + CONNECT_S
            while self.process.poll() is None and self._loop.time() < end and not self._ended:
                try:
                    connected, _ = private.listening.accept()
                except BlockingIOError:
                    await asyncio.sleep(LOOK_S)
                    continue
                connected.setblocking(False)
                try:
                    check_peer(connected, self.process.pid)
                except (WireError, OSError) as error:
                    log.error("%s", error)
                    connected.close()
                    continue
                await self._loop.create_unix_connection(lambda: self, sock=connected)
                return True
            return False
        finally:
            private.close()

    async def _bury(self) -> str:
        """Wait for the process to end, and kill it if it does not. Describes how it ended."""
        assert self.process is not None
        end = self._loop.time() + LAST_BREATH_S
        while self.process.poll() is None and self._loop.time() < end:
            await asyncio.sleep(LOOK_S)
        killed = self.process.poll() is None
        self.process.kill()
        while self.process.poll() is None:
            await asyncio.sleep(LOOK_S)
        return "did not answer" if killed else ending(self.process.returncode)

    # -- the connection, by asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._take(message)
        except WireError as error:
            log.error("the engine's connection is cut: %s", error)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def _take(self, message: Hello | EngineMessage) -> None:
        if isinstance(message, Hello):
            if message.version != VERSION:
                raise WireError(f"its version is {message.version!r}, not {VERSION!r}")
            self.send(self._load)
            return
        self._loading = self._loading and isinstance(message, Loading)
        if not self._ended:
            self._deliver(message)
            if isinstance(message, LoadFailed | EngineFailed):
                self.kill()  # it will send nothing more, and its memory is needed

    def _deliver(self, message: EngineMessage) -> None:
        try:
            self._receive(message)
        except Exception:  # a bug of the front end's, for which asyncio would close the connection
            log.exception("a message of the engine could not be handled")


def spawn(path: str) -> "subprocess.Popen[bytes]":
    """Start the engine's process, which ignores both signals: the front end decides how long requests may take."""
    return program.start("gradus.server.engine.process", path, blocked={signal.SIGINT, signal.SIGTERM})


def ending(code: int) -> str:
    """Describe how a process ended, from `subprocess`'s exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
