"""The process that writes for the front end, so that its system calls take no time of the event loop's core.

A thread would have to take Python's lock after each call, and would wait for the event loop each time. This process
has its own. It holds duplicates of connections' descriptors, so bytes can never reach a connection that has another's
old number. It waits for nothing but the next message: what a connection does not take at once goes back to the front
end, which alone knows about slow clients.

    front end ── OPEN(number) + descriptor, CLOSE(number) ──▶ this process
              ── BATCH(count, size), numbers, lengths, bytes ──▶
              ◀── ready, once ──
              ◀── for each batch: count, then (place, bytes sent) of each entry that was not sent whole ──
"""

import os
import signal
import socket
import struct
import sys
from array import array
from typing import Final

from gradus.device.peer import die_with

OPEN, CLOSE, BATCH = range(3)
HEAD = struct.Struct("=III")
"""Kind; then a connection's number and 0, or a batch's number of entries and its size in bytes."""
NUMBERS: Final = "I"  # of arrays of numbers: 4 bytes each, in this machine's byte order
READY = array(NUMBERS, [0]).tobytes()


def main(descriptor: int) -> None:
    die_with(os.getppid())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as front_end:
        front_end.sendall(READY)
        Writer(front_end).run()


class Writer:
    """Obeys the front end until its end of the socket closes."""

    def __init__(self, front_end: socket.socket) -> None:
        self._front_end = front_end
        self._descriptors: dict[int, int] = {}  # by the connection's number

    def run(self) -> None:
        while (head := self._head()) is not None:
            kind, first, second = HEAD.unpack(head)
            if kind == CLOSE:
                self._close(first)
            elif kind == BATCH:
                self._front_end.sendall(self._write(first, self._received(2 * 4 * first + second)))

    def _head(self) -> bytes | None:
        """Read the head of a message, and keep the descriptor that came with it. None: the front end has left."""
        head, kept = b"", list[int]()
        while len(head) < HEAD.size:
            more, descriptors, _, _ = socket.recv_fds(self._front_end, HEAD.size - len(head), 1)
            kept += descriptors
            if not more:
                return None
            head += more
        for descriptor in kept:
            self._descriptors[HEAD.unpack(head)[1]] = descriptor
        return head

    def _close(self, number: int) -> None:
        descriptor = self._descriptors.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)

    def _received(self, size: int) -> memoryview:
        there = memoryview(bytearray(size))
        at = 0
        while at < size:
            got = self._front_end.recv_into(there[at:])
            if not got:
                raise EOFError
            at += got
        return there

    def _write(self, count: int, content: memoryview) -> bytes:
        """Send each entry as far as its connection takes it. Returns the answer."""
        numbers, lengths = content[: 4 * count].cast(NUMBERS), content[4 * count : 8 * count].cast(NUMBERS)
        at, stuck, answer = 8 * count, set[int](), array(NUMBERS, [0])
        for place in range(count):
            end = at + lengths[place]
            sent = 0
            if numbers[place] not in stuck:  # otherwise later bytes would overtake earlier ones
                sent = sent_of(self._descriptors.get(numbers[place]), content[at:end])
            if at + sent < end:
                stuck.add(numbers[place])
                answer.extend((place, sent))
            at = end
        answer[0] = (len(answer) - 1) // 2
        return answer.tobytes()


def sent_of(descriptor: int | None, content: memoryview) -> int:
    """Send what a connection takes at once, and count it. The front end meets an error when it sends the rest."""
    if descriptor is None:
        return 0
    try:
        return os.write(descriptor, content)
    except OSError:
        return 0


if __name__ == "__main__":
    main(int(sys.argv[1]))
