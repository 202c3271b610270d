"""Counts of one body's requests: tokens, endings, times, and share of the device. Numbers only, never text."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SampleTally:
    """One sample that has not ended.

    last: the time of its newest tokens. tally: its body's.
    """

    last: float
    tally: "Tally"


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
