"""The waiting line and held siblings."""

import random

import pytest

from gradus.engine.sequence import Sequence
from gradus.scheduling.queue import Siblings, WaitingQueue
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


def test_one_that_is_not_the_head_can_start():
    queue = WaitingQueue()
    members = [sequence(str(number), number=number) for number in range(9)]
    queue.extend(members)
    queue.remove(members[4])
    members[4].end("cancelled")
    assert queue.some(3)[0] is members[0] and set(queue.some(99)) == {*members} - {members[4]}
    queue.take(members[6])
    queue.take(members[0])
    queue.check()
    assert [queue.popleft().request.id for _ in range(6)] == ["1", "2", "3", "5", "7", "8"]


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


def test_steps_ahead_never_says_more_than_there_are():
    """Played through: each one ahead takes the slot that is free first, one token per step."""
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
