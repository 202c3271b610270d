"""The count of one body's requests: tokens, endings, times, and their share of the device. Numbers only, never text."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SampleTally:
    """One sample that has not ended.

    last: when its newest tokens came. rows: computed until its first tokens were there, and not priced yet. tokens:
    generated since, not priced and not in the body's tally yet.
    """

    last: float
    rows: int
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Tally:
    """One body's requests, with all their samples.

    arrived: seconds of `time.monotonic`. generated: tokens so far. prompt_tokens: of all prompts, each counted once.
    cached_tokens: of these, what the prefix cache had. finished: how samples ended, by finish_reason.
    queued_s, ttft_s, total_s: of the sample that waited longest, that first had a token, and that ended last.
    device_s: seconds of the device, shared by rows with all others that ran (see `Meter`).
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
