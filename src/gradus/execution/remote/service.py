"""The runner's side: serves one engine after another, each until it closes the connection.

Wrong bytes from an engine end its connection, with one line on both sides, and the next engine is served. A step that
fails ends the process too, because the state of the device is then unknown. No torch here.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gradus.engine.engine import Runner
from gradus.engine.plan import Result
from gradus.engine.structured import Structured
from gradus.engine.wire import PackError, unpack
from gradus.errors import GradusError
from gradus.execution.remote.messages import (
    BEGIN,
    FAILED,
    HELLO,
    LARGEST_GREETING,
    PLAN,
    PREPARE,
    PROTOCOL,
    RESULT,
    Hello,
    MessageError,
    pack_failed,
    pack_greeting,
    pack_result,
    unpack_begin,
    unpack_structured,
)
from gradus.execution.remote.plan_check import PlanCheck
from gradus.execution.remote.stream import Frame, Gone, Listener, Stream

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long an engine may take to answer the greeting: others wait."""
LOOK_S = 3e-5
"""How long to wait for a plan before another look at a device's step."""


class StepFailed(GradusError):
    """A step of this runner raised an error: its process cannot go on."""


def _nothing(_: object) -> None:
    pass


def _at_once(_: Result) -> bool:
    return True


@dataclass(frozen=True)
class Service:
    """A runner for engines in other processes.

    ahead: how many steps may be under way when another plan is taken. done: whether a step's result is there, so that
    `get` returns at once, as it always does where a step has run when `run` returns.
    forget: called at the end of a connection with the pages that it used: wipes them. prepare: compiles a constraint
    soon; returns at once.
    """

    runner: Runner
    hello: Hello
    ahead: int = 0
    done: Callable[[Result], bool] = _at_once
    forget: Callable[[Collection[int]], None] = _nothing
    prepare: Callable[[Structured], None] = _nothing

    def serve(self, listener: Listener) -> None:
        """Serve engines for ever, one at a time. Raises StepFailed."""
        while True:
            try:
                stream = listener.accept()
            except Gone as error:
                log.warning("%s", error)
                continue
            self.attend(stream)

    def attend(self, stream: Stream) -> None:
        """Serve one engine, until it has closed the connection or broken the protocol. Raises StepFailed."""
        check = PlanCheck(self.hello)
        under_way = deque[Result]()
        try:
            self._greet(stream)
            self._follow(stream, check, under_way)
        except Gone as error:
            log.info("%s", error)
        except (MessageError, PackError) as error:
            log.warning("ended a connection: %s", error)
            _say(stream, str(error))
        except StepFailed as error:
            _say(stream, str(error))
            raise
        finally:
            stream.close()
        while under_way:
            self._of_step(under_way.popleft().get)
        self.forget(check.used - {0})

    def _greet(self, stream: Stream) -> None:
        stream.patient(PATIENCE_S)
        stream.send(HELLO, pack_greeting(self.hello))
        kind, payload = stream.receive(LARGEST_GREETING)
        begin = unpack_begin(payload if kind == BEGIN else b"")
        if begin.protocol != PROTOCOL:
            raise MessageError(f"the engine speaks version {begin.protocol}, and this runner version {PROTOCOL}")
        stream.patient(None)
        log.info("serving an engine: %s", begin.program or "unnamed")

    def _follow(self, stream: Stream, check: PlanCheck, under_way: deque[Result]) -> None:
        """Run plans as they come, and send each result once it is there."""
        while True:
            while self._is_due(stream, under_way):
                step = under_way[0]
                sampled = self._of_step(step.get)
                under_way.popleft()
                stream.send(RESULT, pack_result(step.rows, sampled))
            frame = stream.receive()
            if frame.kind == PREPARE:
                self._prepare(frame)
                continue
            if frame.kind != PLAN:
                raise MessageError(f"a frame of the kind {frame.kind!r} came instead of a plan")
            plan = unpack(frame.payload)
            check.check(plan)
            under_way.append(self._of_step(partial(self.runner.run, plan)))

    def _is_due(self, stream: Stream, under_way: deque[Result]) -> bool:
        """Whether to ask for the oldest step's result now. Otherwise there is a frame to receive, or to wait for."""
        while under_way:
            if len(under_way) > self.ahead or self.done(under_way[0]):
                return True
            if stream.arrives(LOOK_S):
                return False
        return False

    def _prepare(self, frame: Frame) -> None:
        structured = unpack_structured(frame.payload)
        if not self.hello.structured:
            raise MessageError("a grammar came, and this runner keeps to none")
        self.prepare(structured)

    def _of_step(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            log.exception("a step failed")
            raise StepFailed(f"a step failed: {type(error).__name__}: {error}") from error


def _say(stream: Stream, reason: str) -> None:
    """Give the engine the reason, if it is still there."""
    with suppress(Gone):
        stream.send(FAILED, pack_failed(reason))
