"""Counts and rates on the event loop's side: of the server, and of one body's requests. Numbers only, never text."""

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gradus.cache.usage import CacheUsage
from gradus.engine.metrics import Speculation


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


@dataclass(slots=True, eq=False)
class Tally:
    """One body's requests, with all their samples.

    arrived: seconds of `time.monotonic`. generated: tokens so far. prompt_tokens: of all prompts, each counted once.
    cached_tokens: prompt tokens found in the prefix cache. finished: counts of samples by finish_reason.
    queued_s: the longest wait of a sample. ttft_s: the earliest first token's. total_s: the last ending's.
    device_s: the share of the device in seconds, as far as the engine has reported it (see `gradus.engine.shares`).
    """

    samples: int
    arrived: float = field(default_factory=time.monotonic)
    generated: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    queued_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    device_s: float = 0.0


@dataclass(slots=True, eq=False)
class SampleTally:
    """One sample that has not ended.

    last: the time of its newest tokens. tally: its body's.
    """

    last: float
    tally: Tally


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
