"""Time limits: what a step takes, which sequences are out of time, and that the loop ends them in every engine."""

import pytest

from gradus.engine.sequence_heap import SMALLEST_CLEANING, SequenceHeap
from gradus.engine.time_limits import MEMORY_S, StepTime, TimeLimits
from gradus.scheduling.scheduler import Scheduler
from tests.scheduling.replica import VirtualClock, ask
from tests.scheduling.test_queue import sequence
from tests.scheduling.world import World


def test_ended_entries_do_not_pile_up():
    heap = SequenceHeap()
    keeps = [sequence(f"k{number}", number=number) for number in range(100)]
    for number, member in enumerate(keeps):
        heap.push(0.0, number, member)
    for number in range(100, 10_000):
        gone = sequence("gone", number=number)
        heap.push(0.0, number, gone)
        gone.end("cancelled")
    assert len(heap) <= 2 * 100 + SMALLEST_CLEANING and set(heap) == set(keeps)


# -- how long a step takes ---------------------------------------------------------------------------------------------


def measured(*seconds: float) -> StepTime:
    """Steps of so many seconds, one after the other from time 0 on."""
    time, now = StepTime(), 0.0
    time.busy_from(now)
    for each in seconds:
        now += each
        time.step_ended(now)
    return time


def test_the_first_step_does_not_count():
    assert measured(30.0).seconds(30.0) == 0.0
    assert measured(30.0, 0.5).seconds(30.5) == 0.5


def test_one_slow_step_says_little_and_many_say_all():
    steps = [0.01, 0.01, 0.01, 5.0]
    assert measured(*steps).seconds(sum(steps)) < 0.011
    steps += [5.0] * 300
    assert measured(*steps).seconds(sum(steps)) == pytest.approx(5.0, rel=0.01)
    steps += [0.01] * 20
    assert measured(*steps).seconds(sum(steps)) == pytest.approx(0.01, rel=0.01)


def test_an_old_measurement_is_forgotten():
    time = measured(1.0, 1.0)
    assert time.seconds(2.0 + MEMORY_S) == 1.0
    assert time.seconds(2.1 + MEMORY_S) == 0.0


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_step_takes_as_long_as_a_sequence_waits_for_its_next_token(lag):
    """A second in the step and two between steps, in which the caller hands tokens out."""
    world = World(pages=64, lag=lag)
    world.add(ask("a", 3, 40))
    for _ in range(8):
        world.step()
        world.clock.now += 2.0
    assert world.engine.times.step_time.seconds(world.clock.now) == pytest.approx(3.0)


def test_time_in_which_nothing_ran_is_no_step():
    world = World(pages=64)
    for name in "abc":
        world.add(ask(name, 3, 4))
        world.drain()
        world.clock.now += 5.0
    assert world.engine.times.step_time.seconds(world.clock.now) == pytest.approx(1.0)


# -- which sequences are out of time -----------------------------------------------------------------------------------


def test_time_is_up_in_order_and_only_for_the_living():
    clock = VirtualClock()
    times = TimeLimits(clock)
    members = {
        "slow": sequence("slow", number=0, timeout=9),
        "quick": sequence("quick", number=1, timeout=2),
        "due": sequence("due", number=2, timeout=5, deadline=3),
        "both": sequence("both", number=3, timeout=3, deadline=3),
        "ended": sequence("ended", number=4, timeout=1),
        "never": sequence("never", number=5),
    }
    for member in members.values():
        times.watch(member)
    members["ended"].end("cancelled")
    clock.now, told = 4.0, []
    for member, reason in times.late((), under_way=0):
        told.append((member.request.id, reason))
        member.end(reason)
    assert told == [("quick", "timeout"), ("due", "deadline"), ("both", "deadline")]
    clock.now = 8.9
    assert list(times.late((), under_way=0)) == []


def test_a_token_under_way_is_not_counted_as_a_step_to_come():
    times = TimeLimits(VirtualClock())
    times.step_time = measured(1.0, 1.0)
    times.clock.now = 2.0
    tight = sequence("tight", wants=5, deadline=6)  # five tokens to come, and four seconds left
    assert [reason for _, reason in times.late([tight], under_way=0)] == ["deadline"]
    assert list(times.late([tight], under_way=1)) == []


# -- what a step costs -------------------------------------------------------------------------------------------------


def decoding(requests: int, **limits) -> World:
    """All of them run and decode."""
    world = World(pages=30 * requests, slots=requests)
    for number in range(requests):
        world.add(ask(f"r{number}", 4, 100, **limits))
    while world.scheduler.columns.count < requests:
        world.step()
    return world


def test_timeouts_cost_a_step_nothing_however_many_sequences_have_one(monkeypatch):
    world = decoding(16, timeout=1000.0)
    monkeypatch.setattr(Scheduler, "running", property(lambda scheduler: pytest.fail("a step walks what runs")))
    monkeypatch.setattr(TimeLimits, "too_late", lambda *_: pytest.fail("a timeout is judged by steps"))
    for _ in range(3):
        world.engine.step()
    monkeypatch.undo()
    assert world.engine.metrics().generated_tokens >= 16 * 3
    world.clock.now += 2000.0
    assert {output.finish_reason for output in world.engine.step()} == {"timeout"}


def test_many_that_are_given_up_at_once_end_in_their_order():
    times, each = TimeLimits(VirtualClock()), [sequence(f"g{number}", number=number) for number in range(1000)]
    times.give_up(each)
    ended = []
    for given_up, reason in times.late([], 0):
        given_up.end(reason)
        ended.append(given_up)
    assert ended == each
