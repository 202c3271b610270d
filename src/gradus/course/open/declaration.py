"""A task without an answer key: what is counted, what is to be reached, and the file to begin with.

    TASK = Open(
        goal="Serve forty answers from sixteen pages, and compute at most half as much twice.",
        counts="recomputed", unit="rows computed again",
        reach=0.5,
        bounds={"steps": 1.0},
        start=START,
        trial=trial,
    )

A trial takes a module (the file to begin with, or the reader's) and a seed, and returns numbers by name. Equal seeds
mean equal workloads. What must not happen at all raises Refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Trial = dict[str, float]


class Refused(Exception):
    """A trial does not count: a wrong token, too much memory, a changed meter. The message says which, in one line."""


@dataclass(frozen=True, slots=True)
class Open:
    """An open task.

    goal: for the reader, in a sentence or two. counts: the name of a trial's number that is scored, and unit: what one
    of it is. reach: the score to reach, as a multiple of the beginning's. bounds: how large other numbers of the trial
    may become, as multiples of the beginning's. needs: how small others must become before the goal is reached; until
    then a score counts as long as they are no larger than the beginning's.
    start: the source of the file to begin with, whose own score is 1.00.
    trials: how many workloads one check measures. clocked: the number is a time, so that each trial's ratio is taken by
    itself, and the median and the spread of the ratios are reported. interpreted: Triton kernels run in Triton's
    interpreter, on the CPU.
    """

    goal: str
    counts: str
    unit: str
    reach: float
    trial: Callable[[Any, int], Trial]
    start: str
    bounds: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, float] = field(default_factory=dict)
    trials: int = 3
    clocked: bool = False
    interpreted: bool = False

    @property
    def target(self) -> str:
        """The goal for the ratio: "0.50 or less"."""
        return f"{self.reach:.2f} or less"

    def reached(self, ratio: float) -> bool:
        return ratio <= self.reach

    def better(self, ratio: float, than: float) -> bool:
        return ratio < than
