"""Any mixture of arrivals, cancellations and steps, in any pool: every sequence gets its tokens, and nothing is lost.

`World` watches the promises. That it would notice a broken one is shown by breaking them, one at a time.
"""

import heapq
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gradus.scheduling.columns import NEVER, Columns
from gradus.scheduling.scheduler import BY_ORDER, Scheduler
from tests.pairwise import first
from tests.scheduling.world import World, random_request, random_world


class SchedulerMachine(RuleBasedStateMachine):
    """add, cancel, let time pass, step, in any order; at the end every sequence still has to end."""

    @initialize(
        pages=st.integers(2, 64),
        page_size=st.sampled_from([1, 2, 4, 16]),
        slots=st.integers(1, 6),
        budget=st.none() | st.integers(1, 512),
        policy=st.sampled_from(["fcfs", "priority", "deadline"]),
        shared=st.booleans(),
        windows=st.sampled_from([(None,), (None, 6), (None, 3, 3)]),
        lag=st.integers(0, 3),
        micro_batches=st.integers(1, 3),
        seconds=st.none() | st.floats(0.5, 20),
        row_s=st.sampled_from([0.0, 0.1, 1.0]),
    )
    def begin(
        self, pages, page_size, slots, budget, policy, shared, windows, lag, micro_batches, seconds, row_s
    ) -> None:
        steps = {"micro_batches": micro_batches, "target": seconds, "row_s": row_s}
        self.world = World(pages, page_size, slots, budget, policy, shared, windows, lag=lag, **steps)
        self.count = 0

    @rule(seed=st.integers(0, 2**32))
    def add(self, seed) -> None:
        self.world.add(random_request(f"r{self.count}", random.Random(seed)))
        self.count += 1

    @rule(steps=st.integers(1, 8))
    def step(self, steps) -> None:
        for _ in range(steps):
            self.world.step()

    @precondition(lambda self: self.world.requests)
    @rule(which=st.integers(0, 2**16), index=st.none() | st.integers(0, 2))
    def cancel(self, which, index) -> None:
        ids = list(self.world.requests)
        self.world.cancel(ids[-1 - which % min(len(ids), 6)], index)  # among the newest: the others have ended

    @precondition(lambda self: self.world.requests)
    @rule(which=st.integers(0, 5))
    def cancel_while_the_next_step_is_under_way(self, which) -> None:
        ids = list(self.world.requests)
        self.world.doomed = ids[-1 - which % len(ids)]

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds) -> None:
        self.world.clock.now += seconds

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(stateful_step_count=100)


@pytest.mark.parametrize("seed", first(range(60), 20))
def test_random_lives_keep_every_promise(seed):
    for lag in range(3):
        random_world(seed, lag=lag)


@pytest.mark.parametrize("seed", first(range(60), 20))
def test_micro_batches_keep_every_promise_too(seed):
    for micro_batches in (2, 3):
        random_world(seed, lag=micro_batches - 1 + seed % 2, micro_batches=micro_batches)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_many_random_lives_keep_every_promise():
    for seed in range(60, 6000):
        random_world(seed, lag=seed % 3)


# -- broken on purpose -------------------------------------------------------------------------------------------------


class KeepsVictimsInThePlan(Scheduler):
    def preempt(self, sequence):
        spans = list(self.plan.spans)
        super().preempt(sequence)
        self.plan.spans[:] = spans


class PreemptsTheBest(Scheduler):
    def make_room(self, sequence, end, start=None):
        while not self.cache.reserve(sequence.id, end, start):
            best = min(self.running, key=BY_ORDER)
            self.preempt(best)
            if best is sequence:
                return False
        return True


class LeaksSlots(Scheduler):
    def preempt(self, sequence):
        slot = sequence.slot
        super().preempt(sequence)
        self.free_slots.remove(slot)
        heapq.heapify(self.free_slots)


class LeaksPages(Scheduler):
    def retire(self, sequence, poisoned=False):
        release, self.cache.release = self.cache.release, lambda id, poisoned=False: None
        super().retire(sequence, poisoned)
        self.cache.release = release


class SamplesFromChunks(Scheduler):
    def place(self, sequence):
        super().place(sequence)
        for span in self.plan.spans:
            span.logits = 1


class IgnoresTheBudget(Scheduler):
    def place(self, sequence):
        self.left = len(sequence.tokens)
        super().place(sequence)


class LetsOthersOvertake(Scheduler):
    def start_next(self, sequence):
        if super().start_next(sequence):
            return True
        for other in sorted(self.waiting, key=BY_ORDER)[1:2]:
            self.waiting.remove(sequence), self.waiting._heap.pop()
            super().start_next(other)
            self.waiting.push(sequence)
        return False


class ForgetsSiblings(Scheduler):
    def retire(self, sequence, poisoned=False):
        held, self.siblings.held = self.siblings.held, lambda request_id: -1
        super().retire(sequence, poisoned)
        self.siblings.held = held


class ForgetsTheLoad(Scheduler):
    def preempt(self, sequence):
        super().preempt(sequence)
        self.waiting.wanted.clear()


class ResumesTooSoon(Scheduler):
    def preempt(self, sequence):
        super().preempt(sequence)
        sequence.resumes = 0


class KeepsOldTables(Scheduler):
    def publish(self, sequence, end):
        moved = [list(each.moved) for each in self.micro_batches]
        super().publish(sequence, end)
        for each, before in zip(self.micro_batches, moved, strict=True):
            each.moved = before


class CommitsWhatHasEnded(Scheduler):
    def commit_exception(self, sequence, sampled):
        sequence.finish_reason = None
        return super().commit_exception(sequence, sampled)


class ReservesNoPage(Scheduler):
    def enter_page(self, sequence):
        return self.columns.holds(sequence)


RARE = {KeepsVictimsInThePlan: 94, ResumesTooSoon: 56, ForgetsSiblings: 23}
"""The first life in which a rare fault shows. It is lived first, and all others where it shows the fault no longer."""


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (
            KeepsVictimsInThePlan,
            "somebody overtook the head of the queue|two spans in one slot|wrong token|list.remove",
        ),
        (PreemptsTheBest, "the best sequence lost its place"),
        (LeaksSlots, "a slot is lost, or taken twice"),
        (LeaksPages, "pages of a sequence not running"),
        (SamplesFromChunks, "a wrong token"),
        (IgnoresTheBudget, "more tokens than the budget"),
        (LetsOthersOvertake, "somebody overtook the head of the queue"),
        (ForgetsSiblings, "there is work, and nothing is done"),
        (ForgetsTheLoad, "the queue's load is not what waits in it"),
        (
            ResumesTooSoon,
            "planned too far|its prompt is not stored|it decodes in every plan|no committed step has run|bounds cross",
        ),
        (KeepsOldTables, r"wrong token|^\d+$"),  # a row of a page that was wiped when it was swapped
        (CommitsWhatHasEnded, "an output after the end|the queue's load is not what waits in it"),
        (ReservesNoPage, "index out of range|disagree on the room"),
    ],
)
def test_a_broken_scheduler_is_noticed(broken, noticed):
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError), match=noticed):
        for seed in (RARE.get(broken, 0), *range(120)):
            random_world(seed, broken, lag=seed % 3)


# -- broken columns ----------------------------------------------------------------------------------------------------


def gives_a_late_token_to_the_next_owner(self, decodes, tokens, exceptions=Columns.exceptions):
    decodes.departures = self.departures
    return exceptions(self, decodes, tokens)


def plans_past_the_end(self, going=Columns.going):
    self._last[self._last >= 0] = NEVER
    return going(self)


def forgets_what_is_unread(self, slot, take=Columns.take):
    return take(self, slot)[1:]


def counts_unstored_positions(self, sequence):
    return len(sequence.tokens)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("exceptions", gives_a_late_token_to_the_next_owner),
        ("going", plans_past_the_end),
        ("take", forgets_what_is_unread),
        ("stored", counts_unstored_positions),
    ],
)
def test_broken_columns_are_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(Columns, name, broken)
    with pytest.raises((AssertionError, IndexError, KeyError)):
        for seed in range(120):
            random_world(seed, lag=seed % 3)
