"""Whether there is time left: how long a step takes, and who must be done when. No torch here."""

import math
from collections.abc import Callable, Iterable, Iterator

from gradus.engine.sequence import Sequence
from gradus.scheduling.queue import SequenceHeap

FALLING, RISING = 1 / 2, 1 / 16
"""How much of a new measurement the estimate takes over, when the step was faster and when it was slower."""
LARGEST_RISE = 2.0
"""What a single step counts at most, as a multiple of the estimate."""
MEMORY_S = 10.0
"""After so long without a step, how long one takes is unknown again."""


class StepTime:
    """How long a step takes at the moment: an exponential moving average that is slow to believe bad news.

    It decides over requests, so it errs on their side. One slow step (a compilation, a long prompt) must not end those
    that normal steps would serve, so it rises slowly and falls fast; the very first step, which allocates and compiles,
    does not count; and a measurement is forgotten when nothing has run for a while, for an estimate that refuses
    everybody would otherwise never be corrected.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._seconds = 0.0
        self._measured = -math.inf

    def measure(self, started: float, ended: float) -> None:
        """Take in one step, from its schedule to its commit."""
        seconds = ended - started
        known, self._measured = self.seconds(ended), ended
        self._steps += 1
        if self._steps == 1:
            return
        if known == 0.0:
            self._seconds = seconds
        elif seconds < known:
            self._seconds += FALLING * (seconds - known)
        else:
            self._seconds += RISING * (min(seconds, LARGEST_RISE * known) - known)

    def seconds(self, now: float) -> float:
        """The estimate; 0 while it is unknown, so that only what is really past is too late."""
        return self._seconds if now - self._measured <= MEMORY_S else 0.0


class Deadlines:
    """Who must be done when: deadlines that can still be met, and hours at which a sequence ends whatever it does."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._step_time = StepTime()
        self._started = 0.0
        self._expiries = SequenceHeap()

    def __bool__(self) -> bool:
        """Whether anybody who lives has one."""
        return self._expiries.head() is not None

    def watch(self, sequence: Sequence) -> None:
        """From now on `expired` names the sequence when its time is up."""
        timeout = sequence.request.scheduling.timeout
        ends = min(sequence.due, math.inf if timeout is None else sequence.arrived + timeout)
        if ends < math.inf:
            self._expiries.push(ends, sequence.order[1], sequence)

    def expired(self, now: float) -> Iterator[tuple[Sequence, str]]:
        """(sequence, finish reason) of everybody whose time is up. The caller ends each before it asks for the next."""
        while (first := self._expiries.head()) is not None and first[0] <= now:
            ends, sequence = first
            yield sequence, "deadline" if ends == sequence.due else "timeout"
            assert sequence.finish_reason is not None, "whose time is up has to end"

    def too_late(self, sequence: Sequence, now: float, steps_ahead: float = 0.0) -> bool:
        """Whether its last token comes after its deadline, at the step time of the moment; a token takes a step.

        Those that steps under way will bring count as here.
        """
        if sequence.due == math.inf:
            return False
        steps = steps_ahead + sequence.longest - sequence.planned
        return now + steps * self._step_time.seconds(now) > sequence.due

    def hopeless(self, running: Iterable[Sequence], now: float) -> list[Sequence]:
        """Who of them is `too_late` already. Costs nothing while nobody has a deadline."""
        return [sequence for sequence in running if self.too_late(sequence, now)] if self else []

    def step_started(self, now: float) -> None:
        self._started = now

    def step_ended(self) -> None:
        self._step_time.measure(self._started, self._clock())
