"""Requests to send to a simulated server: at times of their own (an open loop), or one after the other (a closed one).

All follow from a seed.
"""

import math
from random import Random

from phases.p13_serving.load.records import Record
from phases.p13_serving.load.simulator import Pace, Request, Server

Lengths = tuple[int, int]
"""The shortest and the longest; those between are equally likely."""


def drawn(random: Random, at: float, prompt: Lengths, output: Lengths) -> Request:
    return Request(at, random.randint(*prompt), random.randint(*output))


def open_loop(
    pace: Pace, rate: float, count: int, prompt: Lengths, output: Lengths, seed: int = 0
) -> Server:  # fmt: skip
    """Send `count` requests at random times, `rate` per second, however late the server is. Returns it when done."""
    random, server, at = Random(f"open {rate:g} {seed}"), Server(pace), 0.0
    for _ in range(count):
        at -= math.log(1 - random.random()) / rate  # a Poisson process: gaps are exponential
        server.advance(at)
        server.submit(drawn(random, at, prompt, output))
    server.advance(math.inf)
    return server


def closed_loop(
    pace: Pace, users: int, count: int, prompt: Lengths, output: Lengths, seed: int = 0, think: float = 0.0
) -> Server:  # fmt: skip
    """`users` send a request each, and the next one `think` seconds after the answer, `count` in all."""
    random, server = Random(f"closed {users} {seed}"), Server(pace)
    due = [0.0] * users
    while server.inside or due:
        if not server.inside:
            server.now = max(server.now, min(due))
        for at in sorted(at for at in due if at <= server.now):
            due.remove(at)
            server.submit(drawn(random, at, prompt, output))
            count -= 1
        due += [record.last + think for record in server.step() if record.last is not None]
        due = sorted(due)[: max(count, 0)]
    return server


def warm(records: list[Record], share: float = 0.1) -> list[Record]:
    """The records without the first ones, which found an empty server."""
    ordered = sorted(records, key=lambda record: record.at)
    return ordered[int(share * len(ordered)) :]
