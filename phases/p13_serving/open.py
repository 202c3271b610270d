"""The open task: a queue that keeps its promises in a rush, to every key.

Time is virtual: the simulated server of the lesson's second half. Five keys send requests. Now and then one of
them sends more than the server can answer, for seconds. In the order of arrival, all others then wait behind it, and
most answers come too late for everyone. A key's share of good answers counts as much as any other's.
"""

import math
from dataclasses import dataclass
from random import Random
from typing import Any

from gradus.course.open.declaration import Open, Refused, Trial
from phases.p13_serving.load.goodput import Objective, met
from phases.p13_serving.load.records import Record
from phases.p13_serving.load.simulator import Pace, Request, Server

START = '''"""p13's open task. So far requests wait in the order in which they came, as in p13, which scores 1.00."""

from collections.abc import Sequence

from phases.p13_serving.open import Waiting


class Policy:
    """Change what you like. A new one is made for each run."""

    def order(self, waiting: Sequence[Waiting], now: float) -> list[int]:
        """Called before each step. waiting: in the order of arrival, with number, key, time of arrival and length of
        the prompt. Returns the numbers of those that may wait on, the next to start first; all others are refused."""
        return [one.number for one in waiting]
'''

PACE = Pace(fixed=0.008, row=0.0004, token=0.0001, slots=16, budget=256)
OBJECTIVE = Objective(ttft=0.6, tpot=0.05)
KEYS, SECONDS, RATE = 5, 40.0, 6.0  # RATE: of all keys, in requests per second
EVERY, RUSH, LASTS = 10.0, 120, 6.0  # one key sends RUSH requests more within LASTS seconds, every EVERY seconds


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request as a policy sees it. at: its arrival, in seconds. prompt: in tokens. Its answer's length is unknown."""

    number: int
    key: int
    at: float
    prompt: int


class Judged(Server):
    """The lesson's server, with a policy in front of its slots. The clock and the records are the server's."""

    def __init__(self, policy: Any, sent: dict[int, tuple[int, Request]]) -> None:
        super().__init__(PACE)
        self.policy, self.sent = policy, sent
        self.numbers = {id(request): number for number, (_, request) in sent.items()}
        self.refused: set[int] = set()
        self.good: set[int] = set()

    def step(self) -> list[Record]:
        by = {self.numbers[id(request)]: request for request in self.waiting}
        views = [Waiting(number, self.sent[number][0], one.at, one.prompt) for number, one in by.items()]
        order = list(self.policy.order(views, self.now)) if views else []
        if len(set(order)) != len(order) or not set(order) <= by.keys():
            raise Refused("a policy returns numbers of requests that wait, each once")
        self.refused |= by.keys() - set(order)
        self.waiting.clear()
        self.waiting.extend(by[number] for number in order)
        return super().step() if self.inside else []

    def _commit(self, advanced: list[Request]) -> list[Record]:
        """Note the numbers of requests that end in time."""
        ended = [one for one in advanced if one.written + 1 == one.output]
        records = super()._commit(advanced)
        good = [one for one, record in zip(ended, records, strict=True) if met(record, OBJECTIVE)]
        self.good |= {self.numbers[id(one)] for one in good}
        return records


def requests(seed: int) -> dict[int, tuple[int, Request]]:
    """Draw the requests of all keys, by number in the order of arrival: the key, and its request."""
    random, found, at = Random(seed), [], 0.0
    greedy = random.randrange(KEYS)
    while at < SECONDS:
        found.append((random.randrange(KEYS), at))
        at -= math.log(1 - random.random()) / RATE
    for number in range(int(SECONDS / EVERY)):
        at = EVERY * number + random.uniform(0, 3)
        found += [(greedy, at + random.uniform(0, LASTS)) for _ in range(RUSH)]
    ordered = sorted(found, key=lambda one: one[1])
    return {
        number: (key, Request(at, random.randint(20, 200), random.randint(20, 120)))
        for number, (key, at) in enumerate(ordered)
    }


def trial(yours: Any, seed: int) -> Trial:
    sent = requests(seed)
    server = Judged(yours.Policy(), sent)
    for _, request in sent.values():
        server.advance(request.at)
        server.submit(request)
    server.advance(math.inf)
    if len(server.records) + len(server.refused) != len(sent):
        raise Refused("a request was neither answered nor refused")
    good = server.good
    counts = [sum(key == owner for owner, _ in sent.values()) for key in range(KEYS)]
    shares = [sum(sent[number][0] == key for number in good) / counts[key] for key in range(KEYS)]
    return {"failed": 100 * (1 - sum(shares) / KEYS), "missed": len(sent) - len(good)}


TASK = Open(
    goal="Let at most 14 % as many of a key's requests miss their objective as in p13's queue, on average over the "
    "keys, and at most 42 % as many in all.",
    counts="failed",
    unit="percent of a key's requests (the sum of all trials)",
    reach=0.14,
    needs={"missed": 0.42},
    trial=trial,
    start=START,
    trials=6,
)
