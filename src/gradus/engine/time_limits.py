"""Timeouts and deadlines, in one place: how long a step takes, and which sequences have no time left. No torch here.

A timeout ends a request at a set time. A deadline ends it as soon as it can no longer be met, so that no further step
is spent on it: a token takes a step, and steps take about as long as the last ones did. Before each step, the loop ends
the sequences named here, as a cancellation from outside would.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from gradus.engine.sequence import Sequence
from gradus.engine.sequence_heap import SequenceHeap

FALLING, RISING = 1 / 2, 1 / 16
"""The weight of a new measurement in the estimate, for a step that was faster and for one that was slower."""
LARGEST_RISE = 2.0
"""The most that one step counts, as a multiple of the estimate."""
MEMORY_S = 10.0
"""Seconds without a step after which the time of a step is unknown again."""


class StepTime:
    """The current step time: an exponential moving average that is slow to believe bad news.

    It decides whether requests end, so it errs on their side. One slow step (a compilation, a long prompt) must not end
    requests that normal steps would serve, so it rises slowly and falls fast; the very first step, which allocates and
    compiles, does not count; and a measurement is forgotten when nothing has run for a while, since an estimate that
    refuses every request would otherwise never be corrected.

    A step lasts from the commit of the one before to its own, whatever lies between and however many overlap: that is
    how long a sequence waits for its next token.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0
        self._measured = -math.inf
        self._since = 0.0

    def busy_from(self, now: float) -> None:
        """Record the start of a step before which no sequence was running."""
        self._since = now

    def step_ended(self, now: float) -> float:
        """Record a committed step. Returns the seconds it took: since the last commit, or since it began."""
        seconds, self._since = now - self._since, now
        known, self._measured = self.seconds(now), now
        self._steps += 1
        if self._steps == 1:
            return seconds
        if known == 0.0:
            self._seconds = seconds
        elif seconds < known:
            self._seconds += FALLING * (seconds - known)
        else:
            self._seconds += RISING * (min(seconds, LARGEST_RISE * known) - known)
        return seconds

    def seconds(self, now: float) -> float:
        """Return the estimate; 0 while it is unknown, so that only a deadline already past is too late."""
        return self._seconds if now - self._measured <= MEMORY_S else 0.0


class TimeLimits:
    """The sequences that have a timeout or a deadline. clock: seconds, never going back.

    fastest: the most tokens that a sequence gains in a step: more than 1 where the engine speculates.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, fastest: int = 1) -> None:
        self.clock = clock
        self.fastest = fastest
        self.step_time = StepTime()
        self._expiries, self._deadlines = SequenceHeap(), SequenceHeap()
        self._given_up: deque[Sequence] = deque()
        self._numbers = 0
        self.watching = False  # whether a sequence may have a limit

    @property
    def any(self) -> bool:
        """Whether a live sequence has a limit."""
        self.watching = self.watching and self._expiries.head() is not None
        return self.watching

    @property
    def any_deadline(self) -> bool:
        """Whether a live sequence has a deadline, for which steps must be counted: a timeout is just a time."""
        return self._deadlines.head() is not None

    def watch(self, sequence: Sequence) -> None:
        """Let `late` name the sequence when its time is up."""
        timeout = sequence.request.scheduling.timeout
        ends = min(sequence.due, math.inf if timeout is None else sequence.arrived + timeout)
        if ends < math.inf:
            self._numbers += 1
            self._expiries.push(ends, self._numbers, sequence)
            self.watching = True
        if sequence.due < math.inf:
            self._deadlines.push(sequence.due, self._numbers, sequence)

    def give_up(self, sequences: Iterable[Sequence]) -> None:
        """Let the next `late` name these sequences, which can no longer meet their deadline."""
        self._given_up += sequences

    def too_late(self, sequence: Sequence, steps_ahead: float = 0.0) -> bool:
        """Whether its last token would come after its deadline, at the current step time.

        steps_ahead: steps before its next one; negative where steps under way will give it tokens.
        """
        if sequence.due == math.inf:
            return False
        now = self.clock()
        steps = steps_ahead + (sequence.longest - len(sequence.tokens)) / self.fastest
        return now + steps * self.step_time.seconds(now) > sequence.due

    def late(self, candidates: Iterable[Sequence], under_way: int) -> Iterator[tuple[Sequence, str]]:
        """Yield (sequence, finish reason) for each that is out of time. The caller ends one before asking for the next.

        candidates: sequences with a deadline, to be judged by the steps that they still need. under_way: steps launched
        but not committed.
        """
        while self._given_up:
            sequence = self._given_up.popleft()
            if sequence.finish_reason is None:
                yield sequence, "deadline"
        now = self.clock()
        while (first := self._expiries.head()) is not None and first[0] <= now:
            ends, sequence = first
            yield sequence, "deadline" if ends == sequence.due else "timeout"
            assert sequence.finish_reason is not None, "a sequence that is out of time has to end"
        for sequence in candidates:
            if sequence.finish_reason is None and self.too_late(sequence, -under_way):
                yield sequence, "deadline"
