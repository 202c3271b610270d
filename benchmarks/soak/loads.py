"""One cycle of loads: one user, eight and sixty-four (closed); arrivals at random and in bursts (open); then rest.

Every cycle has the same loads of the same lengths, so cycles differ only by the server's age. An open load has the rate
that the first cycle's eight users came to, times LOADED.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

from benchmarks.soak.client import Client, Got, pause
from benchmarks.soak.observed import Watcher, cpu_seconds, stats
from benchmarks.soak.requests import Served, asked
from benchmarks.start_to_first_token import Server
from gradus.load.jobs.arrivals import at_random, in_bursts

LOADED = 0.7
BURST, BURST_S = 24, 2.0
FIRST_RATE = 4.0  # per second, before the first cycle has measured one
FAULTS_KEPT = 50


@dataclass(frozen=True, slots=True)
class Load:
    """One of a cycle's loads. share: of the cycle's time. users: of a closed load; 0 for an open one."""

    name: str
    share: float
    users: int = 0


LOADS = (
    Load("1 user", 0.12, 1),
    Load("8 users", 0.26, 8),
    Load("64 users", 0.30, 64),
    Load("at random", 0.18),
    Load("bursts", 0.14),
)
CLOSED = tuple(load.name for load in LOADS if load.users)


@dataclass
class Tally:
    """All answers of a run. outcomes: by kind, status and ending. faults: the first ones, and `faulty` counts all."""

    outcomes: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    faulty: int = 0

    def add(self, got: Got) -> None:
        self.outcomes[got.kind, got.status, got.ended] += 1
        if got.fault:
            self.faulty += 1
            if len(self.faults) < FAULTS_KEPT:
                self.faults.append(f"{got.kind}: {got.fault}")

    def statuses(self) -> dict[int, int]:
        found: Counter[int] = Counter()
        for (_, status, _), count in self.outcomes.items():
            found[status] += count
        return dict(found)


class Soaked:
    """A server under load."""

    def __init__(self, server: Server, served: Served, tally: Tally, write_timeout: float) -> None:
        self.server, self.served, self.tally = server, served, tally
        self._write_timeout = write_timeout
        self._rate = 0.0
        self.watcher = Watcher(server.port)

    async def cycle(self, number: int, seconds: float) -> dict[str, dict[str, Any]]:
        """Run all loads, with a watcher of the X-ray. Returns what was measured of each."""
        watching = asyncio.create_task(self.watcher.run())
        try:
            measured = {load.name: await self._load(load, number, seconds * load.share) for load in LOADS}
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if not self._rate:
            self._rate = LOADED * measured["8 users"]["requests"] / measured["8 users"]["seconds"]
        return measured

    async def _load(self, load: Load, cycle: int, seconds: float) -> dict[str, Any]:
        """Measure tokens and requests until the time is up; those still under way end afterwards, unmeasured."""
        numbers, before, cpu = itertools.count(), await stats(self.server), cpu_seconds(self.server)
        began, done = monotonic(), self.tally.outcomes.total()
        ends = began + seconds
        if load.users:
            tasks = [self._user(load.name, cycle, numbers, ends) for _ in range(load.users)]
        else:
            tasks = [self._at(began + at, load.name, cycle, next(numbers)) for at in self._times(load, seconds)]
        running = [asyncio.create_task(task) for task in tasks]
        await asyncio.sleep(ends - monotonic())
        after, took = await stats(self.server), monotonic() - began
        measured = {
            "seconds": round(took, 3),
            "tokens": after["generated_tokens"] - before["generated_tokens"],
            "requests": self.tally.outcomes.total() - done,
            "cpu_s": round(cpu_seconds(self.server) - cpu, 3),
            "preemptions": after["preemptions"] - before["preemptions"],
        }
        await asyncio.gather(*running)
        return measured

    def _times(self, load: Load, seconds: float) -> Sequence[float]:
        rate = self._rate or FIRST_RATE
        if load.name == "bursts":
            return in_bursts(int(-(-seconds // BURST_S)) * BURST, BURST, BURST_S)
        return at_random(max(1, int(rate * seconds)), rate, Random(load.name))

    async def _user(self, load: str, cycle: int, numbers: Iterator[int], ends: float) -> None:
        client = Client(self.server.port, self._write_timeout)
        while monotonic() < ends:
            number = next(numbers)
            got = await client.ask(asked(self.served, load, cycle, number))
            self.tally.add(got)
            await asyncio.sleep(pause(got, Random(number)))
        client.close()

    async def _at(self, when: float, load: str, cycle: int, number: int) -> None:
        await asyncio.sleep(max(0.0, when - monotonic()))
        client = Client(self.server.port, self._write_timeout)
        self.tally.add(await client.ask(asked(self.served, load, cycle, number)))
        client.close()
