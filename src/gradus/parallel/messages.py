"""Bytes between rank 0 and another rank: messages of bounded length, each preceded by that length."""

import select
import socket
import struct
from contextlib import suppress

LENGTH = struct.Struct("<I")
MOST_BYTES = 64 << 20
"""The longest message. A plan takes 4 bytes per prompt token, so no step comes near this limit."""

OPENED, READY, ALIVE, FAILED, SAMPLED = b"O", b"R", b"A", b"F", b"S"
"""First bytes of a rank's messages: found the model, followed by a report; loaded its part; heartbeat; failed, followed
by the reason; in the last stage of a pipeline, what a step sampled."""


class Channel:
    """One end of a stream between two processes. Only one thread may call `receive`, and one at a time `send`."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the other process is gone, ValueError if the message is too long."""
        if len(message) > MOST_BYTES:
            raise ValueError(f"a message between ranks must have at most {MOST_BYTES} bytes, got {len(message)}")
        self._end.sendall(LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """Wait for the next message. Returns None once the other process is gone, or if its bytes are no message."""
        head = self._read(LENGTH.size)
        if head is None:
            return None
        (length,) = LENGTH.unpack(head)
        return self._read(length) if length <= MOST_BYTES else None

    def waiting(self) -> bool:
        """Whether `receive` has something to read, or the end of the stream to report."""
        return bool(select.select([self._end], [], [], 0)[0])

    def close(self) -> None:
        """Close the stream; a waiting `receive` on either side returns None."""
        with suppress(OSError):  # already closed by the other side
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                more = self._end.recv(min(size - len(data), 1 << 20))
            except OSError:
                return None
            if not more:
                return None
            data += more
        return bytes(data)
