"""Run a million requests in virtual time: neither the cost of a step nor the memory grows with their number."""

import gc
import itertools
import math
import sys
from statistics import median

import pytest

from gradus.bench.predict.simulation import Simulation, Stopwatch, short_requests

BATCH, WAITING = 128, 128


def run(count: int, parts: int) -> list[tuple[float, int, int]]:
    """Serve `count` requests. For each part of them: a step's median cost, the memory blocks in use, the tree's nodes.

    The prefix cache is on, and the pool is full after the first few hundred requests.
    """
    simulation = Simulation(BATCH, pages=BATCH * 16)
    supply = short_requests(count + BATCH + WAITING, 32, (4, 24))
    found, served = [], 0
    for part in range(1, parts + 1):
        simulation.watch = Stopwatch()
        while served < count * part // parts:
            while simulation.scheduler.waiting_count < WAITING and (request := next(supply, None)):
                simulation.engine.submit(request)
            served += sum(output.finish_reason is not None for output in simulation.step().others)
        simulation.scheduler.check()
        watch = simulation.watch
        costs = [schedule + commit for schedule, commit in zip(watch.schedules, watch.commits, strict=True)]
        simulation.watch = Stopwatch()
        del watch
        gc.collect()
        index = simulation.cache.index
        found.append((median(costs), sys.getallocatedblocks(), len(index.nodes)))
        del costs
    assert simulation.cache.evictions > count
    return found


def flat(found: list[tuple[float, int, int]], cost: float, memory: float) -> None:
    """After the first part, which fills queue and pool."""
    costs, blocks, nodes = zip(*found[1:], strict=True)
    assert max(blocks) < memory * min(blocks), blocks
    assert max(nodes) < memory * min(nodes), nodes
    for before, after in itertools.pairwise([median(costs[: len(costs) // 2]), median(costs[len(costs) // 2 :])]):
        assert after < cost * before, costs


@pytest.mark.slow
def test_four_thousand_requests_leave_nothing_behind():
    flat(run(4_000, 5), cost=math.inf, memory=1.05)  # other tests run meanwhile


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_million_requests_leave_nothing_behind_and_cost_a_step_nothing():
    flat(run(1_000_000, 20), cost=1.15, memory=1.05)
