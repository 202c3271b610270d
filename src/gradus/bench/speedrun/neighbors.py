"""How busy a repetition's cores were with other processes, so that a log says itself whether its seconds mean anything.

The system counts the time that each core works, and the time that each process works. What the cores did beyond this
process and its children, other processes did, or the host of a virtual machine took.
"""

from dataclasses import dataclass
from typing import Self

import psutil

WORKING = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class Moment:
    """cores: seconds that the usable cores have worked. own: those of this process and its children."""

    cores: float
    own: float

    @classmethod
    def now(cls) -> Self:
        each = psutil.cpu_times(percpu=True)
        process = psutil.Process()
        usable = process.cpu_affinity() if hasattr(process, "cpu_affinity") else range(len(each))
        cores = sum(getattr(each[core], name, 0.0) for core in usable for name in WORKING)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return cls(cores, sum(one.user + one.system for one in times))


def share(before: Moment, after: Moment, seconds: float, cores: int) -> float:
    """The share of the cores' time that others had, from 0 to 1. cores: usable ones."""
    others = (after.cores - before.cores) - (after.own - before.own)
    return min(1.0, max(0.0, others / (seconds * cores)))
