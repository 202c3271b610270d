"""The waiting line, held siblings, expiries and the measured step: what the scheduler stands on."""

import random

import pytest

from gradus.engine.sequence import Sequence
from gradus.scheduling.deadlines import MEMORY_S, Deadlines, StepTime
from gradus.scheduling.queue import SMALLEST_CLEANING, SequenceHeap, Siblings, WaitingQueue
from tests.scheduling.replica import VirtualClock, ask


def sequence(name: str, rank: float = 0.0, number: int = 0, wants: int = 5, index: int = 0, **scheduling) -> Sequence:
    made = Sequence(ask(name, 2, wants, **scheduling), index, VirtualClock())
    made.order = rank, number
    return made


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_the_smallest_order_goes_first():
    queue = WaitingQueue()
    members = [sequence(str(number), rank, number) for number, rank in enumerate([2, 0, 1, 0, 2])]
    queue.extend(members)
    assert [queue.popleft().request.id for _ in range(5)] == ["1", "3", "2", "0", "4"]
    assert queue.head() is None and not len(queue)
    with pytest.raises(IndexError):
        queue.popleft()


def test_one_that_has_ended_is_passed_over():
    queue = WaitingQueue()
    members = [sequence(str(number), number=number) for number in range(3)]
    queue.extend(members)
    queue.remove(members[0])
    members[0].end("cancelled")
    assert queue.head() is members[1] and len(queue) == 2 and set(queue) == set(members[1:])
    queue.check()


def test_the_queue_is_a_sorted_list_whatever_happens():
    draw, queue, model = random.Random(0), WaitingQueue(), []
    for number in range(3000):
        what = draw.random()
        if what < 0.5:
            model.append(sequence(str(number), draw.randint(0, 3), number, draw.randint(1, 9)))
            queue.push(model[-1])
        elif model and what < 0.75:
            gone = model.pop(draw.randrange(len(model)))
            queue.remove(gone)
            gone.end("cancelled")
        elif model:
            first = min(model, key=lambda member: member.order)
            model.remove(first)
            assert queue.popleft() is first
        queue.check()
        assert len(queue) == len(model)


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


def test_steps_ahead_never_says_more_than_there_are():
    """Played through: whoever is ahead takes the slot that is free first, a token a step."""
    draw = random.Random(1)
    for _ in range(300):
        queue, slots = WaitingQueue(), draw.randint(1, 4)
        wanted = [draw.randint(1, 12) for _ in range(draw.randint(0, 8))]
        queue.extend(sequence(str(i), number=i, wants=tokens) for i, tokens in enumerate(wanted))
        free_at = [0] * slots
        for tokens in wanted:
            free_at.sort()
            free_at[0] += tokens
        assert queue.steps_ahead(0.0, slots) <= min(free_at)


def test_only_classes_as_good_are_ahead():
    queue = WaitingQueue()
    queue.extend([sequence("a", 1, 0, wants=7), sequence("b", 3, 1, wants=9)])
    assert [queue.steps_ahead(rank, 1) for rank in (0, 1, 2, 3)] == [0, 7, 7, 16]


def test_one_slot_waits_for_all_that_is_ahead():
    queue = WaitingQueue()
    queue.extend(sequence(str(i), number=i, wants=5) for i in range(3))
    assert queue.steps_ahead(0.0, 1) == 15
    assert queue.steps_ahead(0.0, 3) == 5 / 3  # two of them may run on for up to five steps


# -- siblings ----------------------------------------------------------------------------------------------------------


def test_siblings_come_out_in_their_order_and_only_their_own():
    siblings = Siblings()
    members = [sequence("a", index=index) for index in range(4)]
    siblings.hold("a", members)
    siblings.hold("b", [sequence("b")])
    assert siblings.take("a", 1) == members[:1] and siblings.held("a") == 3 and len(siblings) == 4
    assert siblings.remove(members[2]) and not siblings.remove(members[2])
    assert siblings.take("a", 99) == [members[1], members[3]]
    assert siblings.take("a", 1) == [] and siblings.held("a") == 0 and len(siblings) == 1


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_first_step_does_not_count():
    time = StepTime()
    time.measure(0.0, 30.0)
    assert time.seconds(30.0) == 0.0
    time.measure(30.0, 30.5)
    assert time.seconds(30.5) == 0.5


def test_one_slow_step_says_little_and_many_say_all():
    time = StepTime()
    now = 0.0
    for _ in range(3):
        time.measure(now, now := now + 0.01)
    time.measure(now, now := now + 5.0)
    assert time.seconds(now) < 0.011
    for _ in range(300):
        time.measure(now, now := now + 5.0)
    assert time.seconds(now) == pytest.approx(5.0, rel=0.01)
    for _ in range(20):
        time.measure(now, now := now + 0.01)
    assert time.seconds(now) == pytest.approx(0.01, rel=0.01)


def test_an_old_measurement_is_forgotten():
    time = StepTime()
    for start in (0.0, 1.0):
        time.measure(start, start + 1.0)
    assert time.seconds(2.0 + MEMORY_S) == 1.0
    assert time.seconds(2.1 + MEMORY_S) == 0.0


def test_time_is_up_in_order_and_only_for_those_who_live():
    clock = VirtualClock()
    deadlines = Deadlines(clock)
    members = {
        "slow": sequence("slow", number=0, timeout=9),
        "quick": sequence("quick", number=1, timeout=2),
        "due": sequence("due", number=2, timeout=5, deadline=3),
        "both": sequence("both", number=3, timeout=3, deadline=3),
        "ended": sequence("ended", number=4, timeout=1),
        "never": sequence("never", number=5),
    }
    for member in members.values():
        deadlines.watch(member)
    members["ended"].end("cancelled")
    told = []
    for member, reason in deadlines.expired(4.0):
        told.append((member.request.id, reason))
        member.end(reason)
    assert told == [("quick", "timeout"), ("due", "deadline"), ("both", "deadline")]
    assert list(deadlines.expired(8.9)) == []
