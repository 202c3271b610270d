"""Requests, a router, and simulated servers behind it: what does following prefixes gain, and what does it cost?

Prompts begin with one of a few system prompts, some of them far more popular than others, and go on with a question.
"""

import math
from dataclasses import dataclass
from random import Random

from gradus.bench.statistics import percentile
from phases.p13_serving.load import router
from phases.p13_serving.load.loads import warm
from phases.p13_serving.load.simulator import Pace, Request, Server

SYSTEM, QUESTION, ANSWER = 512, (16, 112), (32, 160)  # tokens


@dataclass(frozen=True, slots=True)
class Crowd:
    """rate: requests per second in all. systems: how many system prompts. skew: the k-th is asked for k^-skew times as
    often as the first. room: blocks of a replica's cache."""

    rate: float
    systems: int = 12
    skew: float = 1.0
    room: int = 400
    count: int = 3000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """hits: the share of prompt tokens that were cached. busiest: the share of requests that one replica got.

    ttft: p50 and p99 in seconds.
    """

    hits: float
    busiest: float
    ttft: tuple[float, float]


def play(pace: Pace, crowd: Crowd, bound: float, replicas: int = 2) -> Played:
    """Send a crowd through a router. bound: of the imbalance; below 0 the router only balances."""
    random = Random(f"crowd {crowd.seed}")
    weights = [(1 + place) ** -crowd.skew for place in range(crowd.systems)]
    servers = [Server(pace) for _ in range(replicas)]
    known = [router.Replica(crowd.room) for _ in servers]
    sent, cached, tokens, at = [0] * replicas, 0, 0, 0.0
    for number in range(crowd.count):
        at -= math.log(1 - random.random()) / crowd.rate
        (system,) = random.choices(range(crowd.systems), weights)
        prompt = [system] * SYSTEM + [crowd.systems + number] * random.randint(*QUESTION)
        for server, replica in zip(servers, known, strict=True):
            server.advance(at)
            replica.inside = server.inside
        names = router.names(prompt)
        chosen = router.choose(known, names if bound >= 0 else [], bound)
        hit = router.BLOCK * known[chosen].matched(names)
        known[chosen].take(names)
        servers[chosen].submit(Request(at, len(prompt), random.randint(*ANSWER), cached=hit))
        sent[chosen], cached, tokens = sent[chosen] + 1, cached + hit, tokens + len(prompt)
    for server in servers:
        server.advance(math.inf)
    waits = [record.ttft or 0.0 for record in warm([record for server in servers for record in server.records])]
    return Played(cached / tokens, max(sent) / sum(sent), (percentile(waits, 50), percentile(waits, 99)))
