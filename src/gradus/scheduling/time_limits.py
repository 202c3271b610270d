"""Timeouts and deadlines for the phases whose scheduler knows none: first come, first served, until it ends.

A scheduler with a policy sees more than the clock: it gives up a request as soon as it can no longer be in time. Here a
request ends when its time is over, so that timeouts and deadlines hold in every phase. No torch here.
"""

import time

from gradus.engine.request import Request


class TimeLimits:
    """The requests that have a limit: their ids, when it is over, and the finish_reason that they end with then."""

    def __init__(self) -> None:
        self._limits: dict[str, tuple[float, str]] = {}

    def watch(self, request: Request) -> None:
        """From now on, which is its arrival."""
        asked = (request.scheduling.timeout, "timeout"), (request.scheduling.deadline, "deadline")
        limits = [(time.perf_counter() + seconds, reason) for seconds, reason in asked if seconds is not None]
        if limits:
            self._limits[request.id] = min(limits)

    def forget(self, request_id: str) -> None:
        """It has ended. One without a limit is no mistake."""
        self._limits.pop(request_id, None)

    def late(self) -> list[tuple[str, str]]:
        """Those whose time is over, and the reason."""
        now = time.perf_counter()
        return [(request_id, reason) for request_id, (end, reason) in self._limits.items() if end <= now]
