"""Limits per API key: samples at once, samples that wait, and tokens per minute.

The rate limit charges afterwards: a request enters if its key is not in debt, and pays for its tokens when it ends,
however it ends. The length of an answer is unknown beforehand, and reserving the maximum would turn away clients that
leave `max_tokens` out. The limit on samples at once bounds a key's debt.
"""

import math
import time
from collections.abc import Callable

from gradus.errors import RequestError
from gradus.server.config import KeyLimits
from gradus.server.failures import QuotaExceeded
from gradus.server.measures import Tally

LONGEST_WAIT_S = 120.0
"""The longest Retry-After: SDKs treat a longer one as a permanent refusal."""


class Account:
    """One key's present use. For one event loop."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[Tally, int] = {}  # of its running requests: tokens used before there was a rate limit
        self._tokens = float(limits.tokens_per_minute or 0)  # left to use; negative: a debt
        self._filled = clock()

    @property
    def limits(self) -> KeyLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: KeyLimits) -> None:
        """Change the limits. A key without a rate limit owes nothing, so a new limit begins with a full minute. Another
        rate scales the balance, so the time to wait stays the same."""
        before, after = self._limits.tokens_per_minute, limits.tokens_per_minute
        self._limits = limits
        if after is None or before == after:
            return
        if before is None:
            self._tokens, self._filled = float(after), self._clock()
            self._open = {tally: _used(tally) for tally in self._open}
        else:
            self._fill(before)
            self._tokens *= after / before

    def admit(self, samples: int) -> None:
        """Admit samples. Raises QuotaExceeded, or RequestError for more samples than the key may ever have."""
        limits = self.limits
        self._check("max_samples", limits.max_samples, samples, sum(tally.samples for tally in self._open))
        waiting = sum(tally.samples for tally in self._open if not tally.generated)
        self._check("max_waiting", limits.max_waiting, samples, waiting)
        if limits.tokens_per_minute is not None:
            self._fill(limits.tokens_per_minute)
            if self._tokens < 0:
                wait = -self._tokens * 60 / limits.tokens_per_minute
                retry_after = min(max(wait, 0.001), LONGEST_WAIT_S)
                raise QuotaExceeded(
                    f"this API key has used its {limits.tokens_per_minute} tokens per minute; "
                    f"try again in {math.ceil(retry_after)} s",
                    retry_after,
                )

    def _check(self, name: str, most: int | None, samples: int, there: int) -> None:
        if most is None or there + samples <= most:
            return
        if samples > most:
            message = f"n must be at most {most} with this API key (its {name}), got {samples}"
            raise RequestError(message, param="n", limit=f"at most {most}", got=samples)
        raise QuotaExceeded(f"this API key may have {most} samples at once (its {name}), and has {there}", 1.0)

    def open(self, tally: Tally) -> None:
        self._open[tally] = 0

    def close(self, tally: Tally) -> None:
        """Charge a request that has ended, if there is a rate limit."""
        free = self._open.pop(tally)
        if self._limits.tokens_per_minute is not None:
            self._tokens -= _used(tally) - free

    def _fill(self, per_minute: int) -> None:
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._filled) * per_minute / 60, float(per_minute))
        self._filled = now


def _used(tally: Tally) -> int:
    return tally.prompt_tokens + tally.generated
