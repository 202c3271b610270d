"""Constraints are compiled by every rank, on a thread, before the plan that admits their requests.

Each rank follows all answers with matchers of its own. Rank 0 sends HOLD and RELEASE between two plans, and compiles
too. The other ranks do as they are sent, in order; a plan that comes too early waits for the compiling.
"""

import queue
import threading
from contextlib import suppress

import msgspec

from gradus.engine.core import Compiler
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from gradus.parallel.ranks import Ranks, RankZero

HOLD, RELEASE = b"H", b"L"
"""First bytes of messages to another rank that are no plans, followed by a constraint."""

_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Structured).decode


def compiler_of(own: Compiler | None, zero: RankZero | None) -> Compiler | None:
    """Return the compiler of an engine: its own, unless other ranks must compile, too."""
    return own if own is None or zero is None else SharedCompiler(own, zero.ranks)


class SharedCompiler:
    """Rank 0's compiler: what it holds, all ranks hold. A lost rank raises RankLost here as in a step."""

    def __init__(self, own: Compiler, ranks: Ranks) -> None:
        self._own = own
        self._ranks = ranks

    def hold(self, structured: Structured) -> None:
        self._ranks.tell(HOLD + _encode(structured))
        try:
            self._own.hold(structured)
        except BaseException:
            self._ranks.tell(RELEASE + _encode(structured))
            raise

    def hold_compiled(self, structured: Structured) -> bool:
        held = self._own.hold_compiled(structured)
        if held:
            self._ranks.tell(HOLD + _encode(structured))
        return held

    def release(self, structured: Structured) -> None:
        self._own.release(structured)
        self._ranks.tell(RELEASE + _encode(structured))


class Follower:
    """Another rank's thread for rank 0's messages. compiler: the rank's own."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="compiling", daemon=True).start()

    def take(self, message: bytes) -> bool:
        """Take a message of a SharedCompiler. Returns False for any other."""
        mine = message[:1] in (HOLD, RELEASE)
        if mine:
            self._messages.put(message)
        return mine

    def _run(self) -> None:
        while True:
            message = self._messages.get()
            structured = _decode(message[1:])
            if message[:1] == RELEASE:
                self._compiler.release(structured)
            else:
                with suppress(RequestError):
                    self._compiler.hold(structured)
