"""What the event loop's side measures and counts for itself: rates, totals, and how long the engine has been silent."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradus.cache.usage import CacheUsage
from gradus.engine.metrics import Speculation
from gradus.server.messages import Report


class ServiceRate:
    """How fast samples end while the engine works, the last minute counting most. Idle time does not count."""

    HALF_LIFE_S = 60.0

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._ended = 0.0

    def record(self, busy_s: float, ended: int) -> None:
        fade = 0.5 ** (busy_s / self.HALF_LIFE_S)
        self._busy_s = self._busy_s * fade + busy_s
        self._ended = self._ended * fade + ended

    def seconds_for(self, samples: int) -> float:
        """How long `samples` more endings will take. Before the first ending: as if it came now."""
        return samples * self._busy_s / max(self._ended, 1.0)


@dataclass(slots=True)
class Counts:
    """What the engine's own totals do not tell.

    Requests: rejected: no room in the queue. abandoned: their client left. stalled: their client did not read.
    Samples: timed_out: their time was up.
    self_checks: how often the idle engine checked its invariants; failed_self_checks: how often one did not hold,
    which is a defect of ours, described in the log.
    """

    rejected: int = 0
    abandoned: int = 0
    stalled: int = 0
    timed_out: int = 0
    self_checks: int = 0
    failed_self_checks: int = 0


class Watch:
    """Since when the engine has been silent though it has something to do; None while it rests.

    The loop ends every turn with a report. So silence with a step to take, or with commands that it has not taken, is
    a step that takes long.
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


def speculation_stats(told: Speculation | None) -> dict[str, Any] | None:
    """What drafts have come to; None without speculation. By position: how many were drafted, and how many stood."""
    if told is None:
        return None
    return {
        "drafts": told.drafts,
        "why": told.why,
        "tokens_per_step": round(told.tokens_per_step, 3),
        "drafted": list(told.drafted),
        "accepted": list(told.accepted),
        "acceptance": [round(part, 4) for part in told.acceptance],
    }


def cache_stats(usage: CacheUsage | None) -> dict[str, int | float] | None:
    """How full the pages are, as counts and as parts of 1; None in phases without pages."""
    if usage is None:
        return None
    parts = ("utilization", "internal_fragmentation", "external_fragmentation", "hit_rate")
    return dataclasses.asdict(usage) | {name: round(getattr(usage, name), 4) for name in parts}
