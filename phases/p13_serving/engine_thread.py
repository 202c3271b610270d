"""One thread owns the engine. All others send it messages, and it sends messages back.

event loop ── Request, Cancel, Stop ──▶ engine thread        a queue, which the thread empties between two steps
event loop ◀───────── Report ────────── engine thread        one per step, however many requests it advanced
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gradus.engine.core import Core
from gradus.engine.request import Request
from gradus.engine.sequence import Output
from gradus.errors import GradusError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


class Stop:
    """Leave the thread, abandoning running requests."""


Message = Request | Cancel | Stop


@dataclass(slots=True)
class Report:
    """A step's outputs. refused: requests that the engine cannot serve, and why. failed: this is the last report."""

    outputs: list[Output] = field(default_factory=list)
    refused: list[tuple[str, GradusError]] = field(default_factory=list)
    failed: bool = False


class EngineThread(threading.Thread):
    """Owns the engine. post: called with each report on this thread, so it must not wait."""

    def __init__(self, engine: Core, post: Callable[[Report], object]) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine, self.post = engine, post
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            while self.turn():
                pass
        except Exception:  # a step that raises leaves the engine in an unknown state
            log.exception("the engine failed")
            self.post(Report(failed=True))

    def turn(self) -> bool:
        """Obey the waiting messages, and take one step. With nothing to do, sleep until a message arrives."""
        messages = [] if self.engine.has_work else [self.inbox.get()]
        while not self.inbox.empty():
            messages.append(self.inbox.get())
        report = Report()
        for message in messages:
            if isinstance(message, Stop):
                return False
            self.obey(message, report)
        if self.engine.has_work:
            report.outputs += self.engine.step()
        self.post(report)
        return True

    def obey(self, message: Request | Cancel, report: Report) -> None:
        if isinstance(message, Cancel):
            report.outputs += self.engine.cancel(message.request_id)
            return
        try:
            self.engine.submit(message)
        except GradusError as error:
            report.refused.append((message.id, error))
