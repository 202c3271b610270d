"""The bounded queue: it limits the requests inside, and estimates when a refused one should come back.

Nothing waits here. The requests themselves wait in the engine's queue; this class counts them.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from gradus.errors import GradusError

RECENT = 32  # departures that determine the pace
MOST_RETRY_S = 60


class Refused(GradusError):
    """A request gets no answer. status: HTTP's; kind: one word for programs; retry_after: in seconds."""

    def __init__(self, message: str, kind: str, status: int = 503, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.status, self.retry_after = kind, status, retry_after


class Admission:
    """Counts the requests inside, running or waiting: at most `places`. clock: in seconds.

    departures: the beginning of the busy period, then the times at which requests left; the oldest drop out.
    """

    def __init__(self, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.places, self.clock = places, clock
        self.inside = 0
        self.departures: deque[float] = deque(maxlen=RECENT + 1)

    def enter(self) -> None:
        """Take a place. Raises Refused, with the time to come back, if all are taken."""
        if self.inside == self.places:
            seconds = self.retry_after()
            raise Refused(f"the queue is full: try again in {seconds} s", "overloaded", retry_after=seconds)
        if self.inside == 0:  # a busy period begins: the idle time before it says nothing about the pace
            self.departures.clear()
            self.departures.append(self.clock())
        self.inside += 1

    def leave(self) -> None:
        """Give a place back, however the request ended."""
        self.inside -= 1
        self.departures.append(self.clock())

    def retry_after(self) -> int:
        """Estimate the whole seconds until a place is free, at the pace of the latest departures: 1 to MOST_RETRY_S."""
        gone = len(self.departures) - 1
        elapsed = self.clock() - self.departures[0]
        return math.ceil(min(max(elapsed / max(gone, 1), 1), MOST_RETRY_S))
