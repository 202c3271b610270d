"""Measurements and counts of the event loop's side: rates, totals, and how long the engine has been silent."""

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
        """Estimate how long `samples` more endings will take. Before the first ending, assume that it comes now."""
        return samples * self._busy_s / max(self._ended, 1.0)


@dataclass(slots=True)
class Counts:
    """Counts that the engine's own totals do not include.

    Requests: rejected: no room in the queue. abandoned: their client left. stalled: their client did not read.
    Samples: timed_out: their time was up. merged: their pieces that became part of a longer one, because the client
    read slowly. restarts: of the engine, after it had failed.
    self_checks: times that the idle engine checked its invariants; failed_self_checks: times that one did not hold,
    which is a bug of ours, described in the log.
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
    """Tracks since when the engine has been silent although it has work; None while it rests.

    The loop ends every turn with a report. So silence with a step to take, or with commands not taken yet, means that
    a step takes long.
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
    """Decides when a failed engine is started again: later each time, and at most MOST times in WINDOW_S seconds, since
    an engine that keeps failing will not be mended by another start."""

    MOST = 3
    WINDOW_S = 600.0
    FIRST_DELAY_S = 0.5

    def __init__(self) -> None:
        self._times: list[float] = []

    def delay(self, now: float) -> float | None:
        """Seconds until the next start, which is counted with this call; None: not again."""
        self._times = [time for time in self._times if now - time < self.WINDOW_S]
        if len(self._times) == self.MOST:
            return None
        self._times.append(now)
        return self.FIRST_DELAY_S * 4.0 ** (len(self._times) - 1)


def speculation_stats(speculation: Speculation | None) -> dict[str, Any] | None:
    """Statistics of drafts; None without speculation. drafted and accepted: counts by position."""
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
    """The use of pages, as counts and as fractions of 1; None in phases without pages."""
    if usage is None:
        return None
    parts = ("utilization", "internal_fragmentation", "external_fragmentation", "hit_rate")
    return dataclasses.asdict(usage) | {name: round(getattr(usage, name), 4) for name in parts}
