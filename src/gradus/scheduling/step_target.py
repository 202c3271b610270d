"""How long a step may last that several sequences share, and how many tokens that is. No torch here.

Every stream waits while a step computes a chunk of another prompt. Its reader notices seconds, not tokens, and a token
takes a hundred times as long on one machine as on another. It also takes longer the further on it is, since it attends
to every token before it. So tokens have a cost: 1 at the beginning of a text, and 1 + p / even at position p. At
position `even`, attention multiplies as many numbers as the model's matrices do, which follows from the model's shape.
The seconds per unit of cost, the pace, are measured at every step with prompts.

The estimate errs on the short side: a step's whole time counts as its tokens', although a step of few tokens takes
nearly as long as one of a single token. So a slow step is believed the less, the shorter it was.

The teaching twin of `cost` and `tokens`, in FLOPs, is phases/p09_triton_attention/chunks.py.
"""

import math
from collections import deque
from collections.abc import Callable

from gradus.engine.plan import Plan

LARGEST_RISE = 2.0  # the most that one step counts, as a multiple of the estimate: it may have been interrupted
UNMEASURED = 16.0  # the cost of prompts in a shared step before the first step was measured


class StepTarget:
    """The target of steps that several sequences share: `seconds`, or twice a step without prompts if that is longer.

    even: the position at which a token costs 2. clock: in seconds. turns: how many steps, one after the other, a
    sequence takes part in only one of: the micro-batches of a pipeline.
    """

    def __init__(self, seconds: float, even: float, clock: Callable[[], float], turns: int = 1) -> None:
        self.seconds, self.even, self.clock, self.turns = seconds, even, clock, turns
        self.pace = 0.0  # seconds per unit of cost; 0 until measured
        self._plain = 0.0  # seconds of a step without prompts; 0 until measured
        self._began: deque[float] = deque()  # of steps under way
        self._ended = -math.inf  # when the newest step was committed

    def cost(self, start: int, end: int) -> float:
        """Return the cost of the tokens at positions [start, end)."""
        return (end - start) * (1 + (start + end - 1) / 2 / self.even)

    def tokens(self, start: int, cost: float) -> int:
        """Return how many tokens from position `start` on have this cost together, rounded down."""
        first = 1 + (start - 0.5) / self.even  # n tokens cost n · first + n² / (2 · even)
        return int(self.even * (math.sqrt(first * first + 2 * cost / self.even) - first) + 1e-9)

    def room(self, decoding: float) -> float:
        """Return the cost that prompts may add to a step whose decodes have the cost `decoding`: at least half of the
        whole step's, so that prompts advance however many decode."""
        if not self.pace:
            return UNMEASURED
        most = max(self.seconds, 2 * self._plain) / self.pace
        return max(most - decoding, most / 2)

    def began(self) -> None:
        """Record that a step was planned."""
        self._began.append(self.clock())

    def took(self, plan: Plan, seconds: float) -> None:
        """Learn from the oldest step under way, which is committed. seconds: as its runner measured it; 0 if it did
        not: then a step lasts from the commit of the one before it, if it was planned by then."""
        began, ended, self._ended = self._began.popleft(), self._ended, self.clock()
        seconds = self.turns * (seconds or self._ended - max(began, ended))
        if not plan.spans:
            self._plain = _moved(self._plain, seconds, 1 / 2)
            return
        decodes = plan.decodes
        cost = sum([self.cost(span.start, span.start + len(span.tokens)) for span in plan.spans])
        if len(decodes):
            cost += decodes.rows * (1 + float(decodes.starts.mean()) / self.even)
        self.pace = _moved(self.pace, seconds / cost, min(1.0, seconds / self.seconds) / 2)


def _moved(known: float, new: float, rising: float) -> float:
    """Move an estimate half of the way to a smaller measurement, and `rising` of the way to a larger one."""
    if not known:
        return new
    return known + (1 / 2 if new < known else rising) * (min(new, LARGEST_RISE * known) - known)
