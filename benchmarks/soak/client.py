"""One client: sends a request, reads its answer or leaves it, and says what was wrong with it."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from random import Random

from benchmarks.soak.endings import fault_of
from benchmarks.soak.requests import Asked
from gradus.load.asking.wire import Broken, Response

PATIENCE_S = 90.0  # for one answer: longer than the queue can take
SMALL = 4096  # bytes that a slow client's system takes from the network before it is read
SLOW_S = 0.01  # between two reads of a slow client


@dataclass(frozen=True, slots=True)
class Got:
    """What became of a request. status: 0 without an answer. ended: "whole", "left", "cut" (its connection was closed),
    "refused". fault: what ought not to be; "" otherwise. again: seconds after which the server wants to be asked again.
    """

    kind: str
    status: int
    ended: str
    fault: str = ""
    again: float = 0.0


class Client:
    """Keeps its connection from request to request, as long as the server does."""

    def __init__(self, port: int, write_timeout: float) -> None:
        self._port, self._write_timeout = port, write_timeout
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, asked: Asked) -> Got:
        reads_little = asked.kind in ("slow", "stuck")
        if reads_little or asked.kind == "malformed":
            self.close()
        await self._connect(SMALL if reads_little else 1 << 16)
        response, body = Response(), bytearray()
        try:
            assert self._writer is not None
            self._writer.write(asked.raw)
            async with asyncio.timeout(asked.leaves if asked.leaves is not None else PATIENCE_S):
                await self._read(asked, response, body)
        except TimeoutError:
            self.close(reset=asked.reset)
            fault = "" if asked.leaves is not None else f"no end within {PATIENCE_S:g} s"
            return Got(asked.kind, response.status, "left", fault)
        except (OSError, Broken) as error:
            return self._cut(asked, response, str(error) or type(error).__name__)
        if not response.done:
            return self._cut(asked, response, "the server closed the connection")
        if not response.reusable or reads_little:
            self.close()
        return judged(asked, response, bytes(body))

    def _cut(self, asked: Asked, response: Response, why: str) -> Got:
        self.close()
        meant = asked.kind in ("stuck", "malformed")
        return Got(asked.kind, response.status, "cut", "" if meant else f"{why} (status {response.status})")

    async def _read(self, asked: Asked, response: Response, body: bytearray) -> None:
        assert self._reader is not None
        if asked.kind == "stuck":
            await asyncio.sleep(1.5 * self._write_timeout)
        while not response.done and (data := await self._reader.read(SMALL if asked.kind == "slow" else 1 << 16)):
            body += response.feed(data)
            if asked.kind == "slow":
                await asyncio.sleep(SLOW_S)
        if not response.done:
            response.closed()

    async def _connect(self, size: int) -> None:
        if self._writer is not None and not self._writer.is_closing():
            return
        connection = socket.socket()
        connection.setblocking(False)
        if size == SMALL:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=size)

    def close(self, reset: bool = False) -> None:
        if self._writer is None:
            return
        if reset and (connection := self._writer.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self._reader = self._writer = None


def judged(asked: Asked, response: Response, body: bytes) -> Got:
    """Judge a whole answer."""
    status = response.status
    if status not in asked.meant:
        return Got(asked.kind, status, "refused", f"{asked.path} answered {status}: {body[:300]!r}")
    if status == 200:
        fault = fault_of(asked.path, asked.stream, body)
        late = asked.kind == "late" and "timeout" in fault
        return Got(asked.kind, status, "whole", "" if not fault or late else f"{asked.path}: {fault}")
    again = response.headers.get(b"retry-after", b"")
    if status == 503 and not (b"the queue is full" in body and again.isdigit()):
        return Got(asked.kind, status, "refused", f"a 503 that is no full queue: {body[:300]!r}")
    if asked.kind != "malformed":
        try:
            json.loads(body)
        except ValueError:
            return Got(asked.kind, status, "refused", f"{status} without JSON: {body[:300]!r}")
    return Got(asked.kind, status, "refused", "", float(again or 0))


def pause(got: Got, random: Random) -> float:
    """Seconds until a refused client asks again: as the server wants, but within a second."""
    return min(got.again, random.uniform(0.2, 1.0)) if got.again else 0.0
