"""Bytes between rank 0 and another rank: each message has its length in front, and a limit."""

import socket
import struct
from contextlib import suppress

LENGTH = struct.Struct("<I")
MOST_BYTES = 64 << 20
"""Longest message. A plan has 8 bytes per token of a prompt, so this is far more than any step needs."""


class Channel:
    """One end of a stream between two processes. `receive` belongs to one thread, `send` to one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the other process has gone, ValueError if the message is too long."""
        if len(message) > MOST_BYTES:
            raise ValueError(f"a message between ranks must have at most {MOST_BYTES} bytes, got {len(message)}")
        self._end.sendall(LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """Wait for the next message. Returns None once the other process has gone, or if it sends nonsense."""
        head = self._read(LENGTH.size)
        if head is None:
            return None
        (length,) = LENGTH.unpack(head)
        return self._read(length) if length <= MOST_BYTES else None

    def close(self) -> None:
        """Close the stream; a `receive` that waits on either side returns None."""
        with suppress(OSError):  # the other side has closed it
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
