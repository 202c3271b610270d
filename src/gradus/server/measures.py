"""Measurements and counts on the event loop's side: rates, totals, and the engine's silence."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradus.cache.usage import CacheUsage
from gradus.engine.metrics import Speculation
from gradus.server.engine.messages import Report


class ServiceRate:
    """The rate at which samples end while the engine works, weighted towards the last minute. Idle time does not
    count."""

    HALF_LIFE_S = 60.0

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._ended = 0.0

    def record(self, busy_s: float, ended: int) -> None:
        fade = 0.5 ** (busy_s / self.HALF_LIFE_S)
        self._busy_s = self._busy_s * fade + busy_s
        self._ended = self._ended * fade + ended

    def seconds_for(self, samples: int) -> float:
        """Estimate the seconds until `samples` more have ended. Before the first ending, assume that it comes now."""
        return samples * self._busy_s / max(self._ended, 1.0)


@dataclass(slots=True)
class Counts:
    """Counts that the engine's own totals do not include.

    Requests: rejected: the queue was full. abandoned: the client left. stalled: the client did not read.
    Samples: timed_out: their time was up. merged: pieces joined into a longer one, because the client read slowly.
    restarts: of the engine, after a failure.
    self_checks: checks of the idle engine's invariants; failed_self_checks: those that found one violated, which is a
    bug of ours, described in the log.
    """

    rejected: int = 0
    abandoned: int = 0
    stalled: int = 0
    timed_out: int = 0
    merged: int = 0
    restarts: int = 0
    self_checks: int = 0
    failed_self_checks: int = 0


class Watch:
    """Tracks the time since which the engine has been silent despite having work; None while it is idle.

    The loop ends every turn with a report. So silence while there is a step to take, or a command to obey, means a long
    step.
    """

    def __init__(self) -> None:
        self.silent_since: float | None = None
        self._commands_sent = 0

    def sent(self, now: float) -> None:
        self._commands_sent += 1
        if self.silent_since is None:
            self.silent_since = now

    def reported(self, report: Report, now: float) -> None:
        waited_for = report.busy or self._commands_sent > report.commands_taken
        self.silent_since = now if waited_for else None


class Restarts:
    """Decides when to start a failed engine again: later each time. After MOST failures in WINDOW_S seconds, another
    start will hardly repair it, but its cause may end (a full disk, a device in use): then AGAIN_S seconds pass before
    each start."""

    MOST = 3
    WINDOW_S = 600.0
    FIRST_DELAY_S = 0.5
    AGAIN_S = 60.0

    def __init__(self) -> None:
        self._times: list[float] = []

    def next(self, now: float) -> tuple[float, bool]:
        """Count a failure. Returns the seconds until the next start, and whether the engine has failed too often."""
        self._times = [time for time in self._times if now - time < self.WINDOW_S][-self.MOST :]
        self._times.append(now)
        if len(self._times) > self.MOST:
            return self.AGAIN_S, True
        return self.FIRST_DELAY_S * 4.0 ** (len(self._times) - 1), False


def speculation_stats(speculation: Speculation | None) -> dict[str, Any] | None:
    """Return statistics of drafts; None without speculation. drafted and accepted: counts by position."""
    if speculation is None:
        return None
    return {
        "drafts": speculation.drafts,
        "why": speculation.why,
        "tokens_per_step": round(speculation.tokens_per_step, 3),
        "drafted": list(speculation.drafted),
        "accepted": list(speculation.accepted),
        "acceptance": [round(part, 4) for part in speculation.acceptance],
    }


def cache_stats(usage: CacheUsage | None) -> dict[str, int | float] | None:
    """Return the use of pages, as counts and as fractions of 1; None in phases without pages."""
    if usage is None:
        return None
    parts = ("utilization", "internal_fragmentation", "external_fragmentation", "hit_rate")
    return dataclasses.asdict(usage) | {name: round(getattr(usage, name), 4) for name in parts}
