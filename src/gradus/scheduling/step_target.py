"""Limits what prompts cost the sequences that share their steps: per step, and on average. No torch here.

Every stream waits while a step computes a chunk of another prompt. Its reader notices seconds, not tokens, and a token
takes a hundred times as long on one machine as on another. It also takes longer the further on it is, since it attends
to every token before it. So tokens have a cost: 1 at the beginning of a text, and 1 + p / even at position p. At
position `even`, attention multiplies as many numbers as the model's matrices do, which follows from the model's shape.
A step lasts as long as one without prompts, and in addition for the cost of its prompts. The seconds per unit of cost,
the pace, are measured at every step with prompts.

Short steps still add up: a long prompt is in hundreds of them. A chunk in each step, small enough that decodes hardly
notice, would be wasteful: at 100,000 positions it reads gigabytes of keys and values for a few tokens, and every step
would leave its CUDA graph. So a long prompt takes chunks worth their fixed cost, and waits between them while the
others decode. Each chunk makes a debt, in seconds, and each step pays a part of its time, so that `slowdown` holds on
average. docs/design/p06.md has the arithmetic.

The teaching twin of `cost` and `tokens`, in FLOPs, is phases/p09_triton_attention/chunks.py.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gradus.engine.plan import Plan, Span
from gradus.engine.sequence import Sequence

LARGEST_RISE = 2.0  # the most that one step counts, as a multiple of the estimate: it may have been interrupted
UNMEASURED = 16.0  # the cost of prompts in a shared step before the first step was measured
LONG = 10.0  # full steps that a prompt takes, at least, to count as long: streams get over a shorter one at once
CHUNK = 16.0
"""The length of a long prompt's chunks, in steps without prompts. It is many times a chunk's fixed cost. The average of
an answer of n tokens may exceed the promise by CHUNK / n, if it meets one chunk more than its share."""


class Issued(NamedTuple):
    """A step under way. began: when it was planned. long_cost: of its chunks of long prompts, and the seconds that were
    expected of them. rate: the seconds of long prompts that a second of the rest pays for; 0: no sequence decodes."""

    began: float
    long_cost: float
    expected: float
    rate: float


class StepTarget:
    """The target of steps that several sequences share: `seconds`, or twice a step without prompts if that is longer.

    even: the position at which a token costs 2. clock: in seconds. turns: how many steps, one after the other, a
    sequence takes part in only one of: the micro-batches of a pipeline. slowdown: how many times as long as without it
    a decode may take per token, on average, while a long prompt is computed; infinite: as long as it takes.
    """

    def __init__(
        self, seconds: float, even: float, clock: Callable[[], float], turns: int = 1, slowdown: float = math.inf
    ) -> None:
        self.seconds, self.even, self.clock, self.turns, self.slowdown = seconds, even, clock, turns, slowdown
        self.pace = 0.0  # seconds per unit of cost; 0 until measured
        self._plain = 0.0  # seconds of a step without prompts; 0 until measured
        self._issued: deque[Issued] = deque()
        self._ended = -math.inf  # when the newest step was committed
        self._debt = 0.0  # seconds of long prompts that other sequences have not been paid for
        self._rate = 0.0  # as in Issued, of the step being planned

    def cost(self, start: int, end: int) -> float:
        """Return the cost of the tokens at positions [start, end)."""
        return (end - start) * (1 + (start + end - 1) / 2 / self.even)

    def tokens(self, start: int, cost: float) -> int:
        """Return how many tokens from position `start` on have this cost together, rounded down."""
        first = 1 + (start - 0.5) / self.even  # n tokens cost n · first + n² / (2 · even)
        return int(self.even * (math.sqrt(first * first + 2 * cost / self.even) - first) + 1e-9)

    def is_long(self, sequence: Sequence) -> bool:
        """Whether the prompt, after the prefix that was known when it started, fills more than LONG steps."""
        if self.slowdown == math.inf:
            return False
        return self.cost(sequence.known, len(sequence.tokens)) * self.pace > LONG * self.seconds

    # -- a step is planned ---------------------------------------------------------------------------------------------

    def room(self, decoding: int) -> float:
        """Return the cost that prompts may add to a step of `decoding` decodes: at least half of the step's time, so
        that prompts advance however many decode."""
        if not self.pace:
            return UNMEASURED
        plain = self._plain if decoding else 0.0
        return max(self.seconds - plain, plain) / self.pace

    def room_for_long(self, decoding: int, prompts: int) -> float:
        """Return the cost that long prompts may add to the next step: 0 until their debt is paid.

        decoding: sequences that decode. prompts: prompts under way, and those that wait for nothing but tokens. Where
        they are many, each still counts as much as a decode: a few streams do not hold up a queue.
        """
        if not decoding or self.slowdown == math.inf:
            self._debt = self._rate = 0.0
            return math.inf
        self._rate = max(self.slowdown - 1, prompts / decoding)
        if self._debt > 0:
            return 0.0
        return CHUNK * self._plain / self.pace if self._plain and self.pace else math.inf

    def began(self, plan: Plan) -> None:
        """Record that a step was planned."""
        long = [span for span in plan.spans if span.sequence is not None and self.is_long(span.sequence)]
        long_cost = sum([self._cost_of(span) for span in long])
        expected = long_cost * self.pace if self._rate else 0.0
        self._debt += expected
        self._issued.append(Issued(self.clock(), long_cost, expected, self._rate))

    def _cost_of(self, span: Span) -> float:
        return self.cost(span.start, span.start + len(span.tokens))

    # -- a step is done ------------------------------------------------------------------------------------------------

    def took(self, plan: Plan, seconds: float) -> None:
        """Learn from the oldest step under way, which is committed. seconds: as its runner measured it, with the time
        before it for which there was nothing to do; 0 if it did not: then a step lasts from the commit of the one
        before it, if it was planned by then. A commit may wait for the host to launch the next step, which is long
        where that one reads prompts."""
        step, ended, self._ended = self._issued.popleft(), self._ended, self.clock()
        since_planned = self._ended - step.began
        seconds = self.turns * min(seconds or self._ended - ended, since_planned)
        cost = sum([self._cost_of(span) for span in plan.spans])
        added = max(0.0, seconds - self._plain) if len(plan.decodes) else seconds  # by prompts
        self._settle(step, seconds, added * step.long_cost / cost if cost else 0.0)
        if plan.spans:
            self._learn_pace(cost, added, long=step.long_cost > 0)
        else:
            self._plain = _moved(self._plain, seconds, 1 / 2, 1 / 2)

    def _settle(self, step: Issued, seconds: float, long_seconds: float) -> None:
        """Correct the debt by what the step's long prompts took, and pay with the rest of its time."""
        counted = min(long_seconds, LARGEST_RISE * step.expected)
        self._debt = max(0.0, self._debt + counted - step.expected - step.rate * (seconds - long_seconds))

    def _learn_pace(self, cost: float, seconds: float, *, long: bool) -> None:
        """Move the pace to that of prompts that took these seconds: the more of a full step, the further.

        Short prompts bear a step's fixed cost, so a load of them makes all prompts look slow. A few chunks of a long
        one correct that: downwards, a full chunk counts as much as a full step.
        """
        full = min(self.seconds, CHUNK * self._plain) if long and self._plain else self.seconds
        falling, rising = min(1.0, cost * self.pace / full) / 2, min(1.0, seconds / self.seconds) / 2
        self.pace = _moved(self.pace, seconds / cost, falling, rising)


def _moved(known: float, new: float, falling: float, rising: float) -> float:
    """Move an estimate `falling` of the way to a smaller measurement, or `rising` of the way to a larger one."""
    if not known:
        return new
    return known + (falling if new < known else rising) * (min(new, LARGEST_RISE * known) - known)
