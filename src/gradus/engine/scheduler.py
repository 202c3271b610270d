"""What every scheduler promises the loop. The schedulers themselves grow with the phases. No torch here."""

from collections.abc import Iterable
from typing import Protocol

from gradus.engine.plan import Plan, Result
from gradus.engine.sequence import Output, Sequence


class Scheduler(Protocol):
    """Decides who runs and for how many tokens; keeps the queue, and nothing on the device."""

    waiting_count: int
    active_count: int

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the samples of one request, all or none. Raises RequestError for what could never be served."""

    def schedule(self) -> Plan | None:
        """The next step's work, or None when there is none. Room in the cache is taken here, before the step runs."""

    def commit(self, plan: Plan, result: Result) -> list[Output]:
        """Wait for the step, append its tokens, finish and free what ended."""

    def cancel(self, request_id: str, index: int | None, reason: str) -> list[Output]:
        """End the request's samples (or one of them) wherever they are; [] if they ended before."""

    def check(self) -> None:
        """Assert the invariants of queue and cache."""
