"""The front end's side of the process that writes: a step's pieces leave in one message.

The process changes no order on a connection. A piece goes to it only if nothing waits in the connection's
own transport; while pieces are under way no others are gathered; and anything else that is written to such a connection
first waits until they have arrived (`Behind`): a fraction of a millisecond, and seldom. What a connection does not take
at once is written by its transport, which limits slow clients as ever.
"""

import asyncio
import logging
import os
import socket
import subprocess
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT, SIGTERM
from typing import Any, Protocol

from gradus.device import program
from gradus.device.threads import usable_cores
from gradus.server.writing.process import BATCH, CLOSE, HEAD, NUMBERS, OPEN, READY

log = logging.getLogger(__name__)

LEAST = 48  # streams in a step that repay the detour, some 100 microseconds
CORES = 4  # an engine, the front end, the process that writes, and the system
PATIENCE_S = 1.0  # for a process that waits for nothing
ENTRY = array(NUMBERS).itemsize
AT_ONCE = 1 << 16  # bytes of an answer


class Connection(Protocol):
    """A connection as the outbox sees it. number: in the other process; 0: not opened there. under_way: whether a batch
    has bytes of it."""

    number: int
    under_way: bool

    @property
    def descriptor(self) -> int: ...

    def write_now(self, data: bytes) -> None:
        """Give bytes to the transport, or drop them if the connection is closing."""

    def cut(self) -> None:
        """Close the connection at once."""


class Outbox:
    """Writes the pieces of many connections in another process, once a step has enough of them. For one event loop.

    gathering: whether `put` takes pieces.
    """

    def __init__(self, least: int = LEAST, cores: int | None = None) -> None:
        self.gathering = False
        self._least = least
        self._wanted = (cores or usable_cores()) >= CORES and hasattr(socket, "send_fds")
        self._opened = 0
        self._socket: socket.socket | None = None  # once the process is ready
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Future[Any] | None = None
        self._connections: list[Connection] = []
        self._pieces: list[bytes] = []
        self._under_way: list[tuple[Connection, bytes]] = []
        self._answer = b""
        self._limit: asyncio.TimerHandle | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether the process runs, and can write."""
        return self._socket is not None

    # -- gathering ----------------------------------------------------------------------------------------------------

    def delays(self, delivery: Callable[[], None]) -> bool:
        """Whether pieces are under way. Then `delivery` is called when they have arrived."""
        if self._under_way:
            self._waiting.append(delivery)
        return bool(self._under_way)

    @contextmanager
    def gather(self, streams: int) -> Iterator[None]:
        """Within the block, take the pieces of a step with this number of streams, if it repays the detour, and send
        them at its end."""
        if streams < self._least or not self._wanted:
            yield
            return
        if self._socket is None:
            self._start()
            yield
            return
        self.settle()
        self.gathering = True
        try:
            yield
        finally:
            self.gathering = False
            self._send()

    def put(self, connection: Connection, piece: bytes) -> None:
        """Take a piece for a connection in whose transport nothing waits."""
        if not connection.number and self._socket is not None:
            self._open(connection)
        self._connections.append(connection)
        self._pieces.append(piece)

    def _open(self, connection: Connection) -> None:
        self._opened += 1
        head = HEAD.pack(OPEN, self._opened, 0)
        with self._failing() as channel:
            socket.send_fds(channel, [head], [connection.descriptor])
            connection.number = self._opened

    def forget(self, connection: Connection) -> None:
        """Close a connection there too, behind what is under way."""
        number, connection.number = connection.number, 0
        if number and self._socket is not None:
            with self._failing() as channel:
                channel.sendall(HEAD.pack(CLOSE, number, 0))

    # -- a batch and its answer ---------------------------------------------------------------------------------------

    def _send(self) -> None:
        connections, pieces, self._connections, self._pieces = self._connections, self._pieces, [], []
        if self._socket is None:  # it failed meanwhile
            for connection, piece in zip(connections, pieces, strict=True):
                connection.write_now(piece)
            return
        if not pieces:
            return
        numbers = array(NUMBERS, [connection.number for connection in connections])
        lengths = array(NUMBERS, map(len, pieces))
        self._under_way = list(zip(connections, pieces, strict=True))
        for connection in connections:
            connection.under_way = True
        with self._failing() as channel:
            head = HEAD.pack(BATCH, len(pieces), sum(lengths))
            channel.sendall(b"".join((head, numbers.tobytes(), lengths.tobytes(), *pieces)))
            self._limit = asyncio.get_running_loop().call_later(PATIENCE_S, self._fail, "does not answer")

    def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way and self._socket is not None:
            with self._failing() as channel:
                self._take(channel.recv(AT_ONCE))

    def _receive(self) -> None:
        """Receive what is there: nothing, if `settle` was faster."""
        with self._failing() as channel, suppress(BlockingIOError):
            self._take(os.read(channel.fileno(), AT_ONCE))

    def _take(self, received: bytes) -> None:
        """Take a part of the answer to the batch, and finish the batch with the last one."""
        if not received:
            raise ConnectionResetError("has ended")
        self._answer += received
        answer = array(NUMBERS, self._answer[: len(self._answer) // ENTRY * ENTRY])
        if answer and len(self._answer) == ENTRY * (1 + 2 * answer[0]):
            self._answer = b""
            self._finish(dict(zip(answer[1::2], answer[2::2], strict=True)))

    def _finish(self, partly: dict[int, int]) -> None:
        """Write the rest of pieces that were not sent whole. partly: bytes sent, by place."""
        under_way, self._under_way = self._under_way, []
        if self._limit is not None:
            self._limit.cancel()
        for connection, _ in under_way:
            connection.under_way = False
        for place, sent in partly.items():
            connection, piece = under_way[place]
            connection.write_now(piece[sent:])
        waiting, self._waiting = self._waiting, []
        for delivery in waiting:
            asyncio.get_running_loop().call_soon(delivery)

    # -- the process --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the process, unless that is under way. Its first answer says that it is ready."""
        if self._starting is None:
            loop = asyncio.get_running_loop()
            ours, theirs = socket.socketpair()
            ours.settimeout(PATIENCE_S)
            self._starting = loop.run_in_executor(None, self._spawn, theirs)
            self._starting.add_done_callback(lambda started: self._started(started, ours, loop))

    def _spawn(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        with theirs:
            number = theirs.fileno()
            return program.start(
                "gradus.server.writing.process", str(number), blocked={SIGINT, SIGTERM}, descriptors=[number]
            )

    def _started(self, started: "asyncio.Future[Any]", ours: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        if started.cancelled() or started.exception() is not None:
            ours.close()
            self._give_up("could not be started")
            return
        self._process = started.result()
        loop.add_reader(ours.fileno(), self._begin, ours, loop)

    def _begin(self, ours: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(ours.fileno())
        if not self._wanted or ours.recv(len(READY)) != READY:
            ours.close()
            self._give_up("has ended")
            return
        self._socket = ours
        loop.add_reader(ours.fileno(), self._receive)

    @contextmanager
    def _failing(self) -> Iterator[socket.socket]:
        """Give the socket; an error on it means the end of the process."""
        assert self._socket is not None
        try:
            yield self._socket
        except OSError as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """Go on without the process. What was under way may have been sent or not, so those connections are cut."""
        self._give_up(why)
        for connection in {id(connection): connection for connection, _ in self._under_way}.values():
            connection.cut()
        self._finish({})

    def _give_up(self, why: str) -> None:
        log.warning("the process that writes to connections %s: the event loop writes by itself", why)
        self.close()

    def close(self) -> None:
        """End the process. Later pieces are written by their connections' transports."""
        self._wanted = False
        ours, self._socket = self._socket, None
        if ours is not None:
            with suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().remove_reader(ours.fileno())
            ours.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Behind:
    """A connection's transport, for everything that is not a piece: bytes wait for the pieces before them."""

    def __init__(self, transport: asyncio.Transport, connection: Connection, outbox: Outbox) -> None:
        self._transport, self._connection, self._outbox = transport, connection, outbox

    def write(self, data: bytes) -> None:
        if self._connection.under_way:
            self._outbox.settle()
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
