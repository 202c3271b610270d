"""What a timeline records of an engine's steps: it adds up, it is bounded, and it changes nothing."""

import time
from itertools import pairwise

import pytest
import torch

from gradus.bench.measure.timeline import Timeline
from gradus.engine.plan import Plan
from tests.scheduling.replica import ask
from tests.scheduling.world import World

CPU = torch.device("cpu")


def watched(kept: int = 1000, **settings) -> World:
    world = World(**{"pages": 32, **settings})
    world.timeline = Timeline(CPU, kept)
    world.timeline.watch(world.engine)
    return world


def busy(world: World) -> World:
    """Prompts in chunks, decodes, a queue, and whatever preemptions a small pool brings."""
    for name, prompt, answer in (("a", 5, 8), ("b", 11, 6), ("c", 3, 9), ("d", 1, 4)):
        world.add(ask(name, prompt, answer))
    world.drain()
    return world


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_records_add_up_to_what_the_engine_counts(lag):
    world = busy(watched(lag=lag, slots=2, budget=4))
    steps, metrics = world.timeline.records, world.engine.metrics()
    assert [step.number for step in steps] == list(range(metrics.steps))
    assert sum(step.prefills + step.decodes for step in steps) == metrics.batch_total
    assert sum(step.rows for step in steps) == metrics.rows == sum(step.tokens for step in steps)
    assert sum(step.decodes for step in steps) == metrics.generated_tokens - 4, "all but each one's first token"
    assert steps[0].waiting == 3 and steps[-1].waiting == 0
    assert world.timeline.steps == metrics.steps


def test_a_prompts_last_single_token_is_no_decode_and_neither_is_what_is_computed_again():
    world = watched(pages=4, slots=2, budget=4)
    world.add(ask("a", 5, 8))
    world.add(ask("b", 3, 8))
    world.drain()
    steps = world.timeline.records
    assert (steps[0].prefills, steps[0].tokens) == (1, 4) and (steps[1].prefills, steps[1].decodes) == (2, 0)
    assert world.scheduler.preemptions > 0
    assert sum(step.decodes for step in steps) < 7 + 7, "a preempted sequence's tokens come back in one prefill"


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_as_many_steps_are_under_way_as_the_engine_lets(lag):
    steps = busy(watched(lag=lag)).timeline.records
    assert [step.under_way for step in steps][: lag + 1] == list(range(lag + 1))
    assert {step.under_way for step in steps} == set(range(lag + 1))


@pytest.mark.parametrize("lag", [0, 1])
def test_a_step_is_planned_then_launched_then_committed(lag):
    steps = list(busy(watched(lag=lag)).timeline.records)
    for step in steps:
        times = [*step.schedule, *step.run, *step.commit]
        assert times == sorted(times) and times[0] >= 0
        assert 0 <= step.wait <= step.commit[1] - step.commit[0]
        assert step.gpu is None
    for before, after in pairwise(steps):
        assert before.commit[1] <= after.commit[0]
        assert (after.run[1] <= before.commit[0]) if lag else (before.commit[1] <= after.schedule[0])


class Slow:
    """A result that takes its time."""

    def __init__(self, result) -> None:
        self.rows, self.result = result.rows, result

    def get(self):
        time.sleep(0.01)
        return self.result.get()


def test_waiting_for_the_device_is_told_apart_from_the_hosts_own_work(monkeypatch):
    world, run = watched(), World.run
    monkeypatch.setattr(World, "run", lambda self, plan: Slow(run(self, plan)))
    steps = busy(world).timeline.records
    waited, committed = (sum(part) for part in zip(*[(s.wait, s.commit[1] - s.commit[0]) for s in steps], strict=True))
    assert 0.01 * len(steps) <= waited < committed


def test_pages_are_those_that_sequences_hold_once_the_step_is_planned(monkeypatch):
    world, held = watched(slots=2), []
    run = World.run

    def look(self, plan: Plan):
        held.append(self.cache.pool.held)
        return run(self, plan)

    monkeypatch.setattr(World, "run", look)
    steps = busy(world).timeline.records
    assert [step.pages for step in steps] == held and max(held) > 2


def test_only_the_last_records_are_kept():
    timeline = busy(watched(kept=4)).timeline
    assert [step.number for step in timeline.records] == list(range(timeline.steps - 4, timeline.steps))


@pytest.mark.parametrize("lag", [1, 2])
def test_it_may_come_and_go_while_steps_are_under_way(lag):
    world = World(pages=32, lag=lag)
    timeline = Timeline(CPU)
    for name in "ab":
        world.add(ask(name, 3, 30))
    for watching in [False] * 4 + [True] * 5 + [False] * 5 + [True] * 5:
        if watching:
            timeline.watch(world.engine)
        world.step()
        if watching:
            timeline.leave(world.engine)
    assert timeline.steps == len(timeline.records) == 2 * (5 - lag), "what it saw planned and committed"
    world.drain()
