"""Constraints are compiled before their requests enter the engine, on a thread of their own.

A new schema takes milliseconds to compile, and a hostile one a quarter of a second. Inside a step, all streams would
wait for it. So the loop hands such a request to this thread, goes on, and gets it back through its own queue. Requests
without a constraint, and those whose constraint is compiled, enter at once. llguidance compiles without Python's lock.

The compiled form is held until the request has ended, so no step compiles it again. Its memory is bounded: while the
engine has MAX_HELD constraints, requests with others wait here.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gradus.engine.core import Compiler
from gradus.engine.structured import Structured
from gradus.server.engine.messages import Cancel, Submit

MAX_HELD = 256  # constraints: 0.1 to 1 MB each
MAX_HELD_CHARACTERS = 8 * 2**20  # of their texts: what is compiled takes tens of times as much


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request whose constraint is compiled and held, or (error) cannot be."""

    submit: Submit
    error: BaseException | None = None


class Compiling:
    """The requests whose constraints are being compiled, in order of arrival. Only the loop calls its methods.

    compiler: None lets every request through at once. put: takes requests back, from the thread.
    """

    def __init__(self, compiler: Compiler | None, put: Callable[[Compiled], None]) -> None:
        self._compiler = compiler
        self._put = put
        self._cancels: dict[int, list[Cancel]] = {}  # by the handle of a request that is being compiled
        self._queue: queue.SimpleQueue[Submit] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._held: Counter[Structured] = Counter()  # requests, by their constraint
        self._characters = 0  # of the constraints' texts
        self._room = threading.Condition()  # guards both

    def takes(self, command: Submit | Cancel) -> bool:
        """Take a request that must be compiled first, or a `Cancel` that must not overtake one. False: obey it now."""
        if isinstance(command, Cancel):
            if command.handle not in self._cancels:
                return False
            self._cancels[command.handle].append(command)
            return True
        structured = command.params.structured
        if self._compiler is None or structured is None or self._hold_compiled(self._compiler, structured):
            return False
        self._cancels[command.handle] = []
        self._queue.put(command)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._compiler,), name="compiling", daemon=True)
            self._thread.start()
        return True

    def end(self, compiled: Compiled) -> list[Cancel]:
        """Forget a request that has come back. Returns what was to cancel it meanwhile."""
        return self._cancels.pop(compiled.submit.handle)

    def release(self, structured: Structured | None) -> None:
        """Release the constraint of a request that has left the engine."""
        if self._compiler is not None and structured is not None:
            self._compiler.release(structured)
            self._uncount(structured)

    def _hold_compiled(self, compiler: Compiler, structured: Structured) -> bool:
        with self._room:
            if not self._has_room(structured) or not compiler.hold_compiled(structured):
                return False
            self._count(structured)
            return True

    # -- what is held --------------------------------------------------------------------------------------------------

    def _has_room(self, structured: Structured) -> bool:
        if not self._held or structured in self._held:
            return True
        return len(self._held) < MAX_HELD and self._characters + len(structured.text) <= MAX_HELD_CHARACTERS

    def _count(self, structured: Structured) -> None:
        if structured not in self._held:
            self._characters += len(structured.text)
        self._held[structured] += 1

    def _uncount(self, structured: Structured) -> None:
        with self._room:
            self._held[structured] -= 1
            if not self._held[structured]:
                del self._held[structured]
                self._characters -= len(structured.text)
                self._room.notify()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self, compiler: Compiler) -> None:
        while True:
            submit = self._queue.get()
            structured = submit.params.structured
            assert structured is not None
            with self._room:
                self._room.wait_for(partial(self._has_room, structured))
                self._count(structured)
            try:
                compiler.hold(structured)
            except BaseException as error:  # a panic of a library in Rust is no Exception
                self._uncount(structured)
                self._put(Compiled(submit, error))
            else:
                self._put(Compiled(submit))
