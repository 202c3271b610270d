"""Any mixture of arrivals, cancellations and steps, in any pool: everybody gets their tokens, and nothing is lost.

`World` watches the promises. That it would notice a broken one is shown by breaking them, one at a time.
"""

import heapq
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gradus.scheduling.batching import BY_ORDER, PagedBatching
from tests.scheduling.world import World, random_request, random_world


class SchedulerMachine(RuleBasedStateMachine):
    """add, cancel, let time pass, step, in any order; at the end everybody still has to end."""

    @initialize(
        pages=st.integers(2, 64),
        page_size=st.sampled_from([1, 2, 4, 16]),
        slots=st.integers(1, 6),
        budget=st.none() | st.integers(1, 512),
        policy=st.sampled_from(["fcfs", "priority", "deadline"]),
        shared=st.booleans(),
        windows=st.sampled_from([(None,), (None, 6), (None, 3, 3)]),
        lag=st.integers(0, 2),
    )
    def begin(self, pages, page_size, slots, budget, policy, shared, windows, lag) -> None:
        self.world = World(pages, page_size, slots, budget, policy, shared, windows, lag=lag)
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


@pytest.mark.parametrize("seed", range(60))
def test_random_lives_keep_every_promise(seed):
    for lag in range(3):
        random_world(seed, lag=lag)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_many_random_lives_keep_every_promise():
    for seed in range(60, 6000):
        random_world(seed, lag=seed % 3)


# -- broken on purpose -------------------------------------------------------------------------------------------------


class KeepsVictimsInThePlan(PagedBatching):
    def preempt(self, sequence):
        spans = list(self.plan.spans)
        super().preempt(sequence)
        self.plan.spans[:] = spans


class PreemptsTheBest(PagedBatching):
    def make_room(self, sequence, end):
        while not self.cache.reserve(sequence.id, end):
            best = min(self.running, key=BY_ORDER)
            self.preempt(best)
            if best is sequence:
                return False
        return True


class LeaksSlots(PagedBatching):
    def preempt(self, sequence):
        slot = sequence.slot
        super().preempt(sequence)
        self.free_slots.remove(slot)
        heapq.heapify(self.free_slots)


class LeaksPages(PagedBatching):
    def end(self, sequence, reason):
        release, self.cache.release = self.cache.release, lambda id, poisoned=False: None
        output = super().end(sequence, reason)
        self.cache.release = release
        return output


class SamplesFromChunks(PagedBatching):
    def place(self, sequence, find_room):
        found = super().place(sequence, find_room)
        if found:
            self.plan.spans[-1].logits = 1
        return found


class IgnoresTheBudget(PagedBatching):
    def place(self, sequence, find_room):
        self.left = len(sequence.tokens)
        return super().place(sequence, find_room)


class LetsOthersOvertake(PagedBatching):
    def start_next(self, sequence):
        if super().start_next(sequence):
            return True
        others = sorted(self.waiting, key=BY_ORDER)[1:2]
        for other in others:
            self.waiting.remove(sequence), self.waiting._heap.pop()
            super().start_next(other)
            self.waiting.push(sequence)
        return False


class ForgetsSiblings(PagedBatching):
    def forget(self, sequence):
        held, self.siblings.held = self.siblings.held, lambda request_id: -1
        super().forget(sequence)
        self.siblings.held = held


class ForgetsTheLoad(PagedBatching):
    def preempt(self, sequence):
        super().preempt(sequence)
        self.waiting.wanted.clear()


class PlansPastTheEnd(PagedBatching):
    def decode(self):
        for sequence in self.running:
            sequence.longest += 1
        super().decode()
        for sequence in self.running:
            sequence.longest -= 1


class ResumesTooSoon(PagedBatching):
    def preempt(self, sequence):
        super().preempt(sequence)
        sequence.resumes = 0


class KeepsTheTokenOfAStepThatIsOff(PagedBatching):
    def preempt(self, sequence):
        spans = [span for span in self.plan.spans if span.sequence is sequence]
        super().preempt(sequence)
        sequence.planned += len(spans)


class KeepsOldTables(PagedBatching):
    def publish(self, sequence, end):
        room = sequence.room
        super().publish(sequence, end)
        sequence.room = room


class LosesLateTokens(PagedBatching):
    def commit(self, plan, result):
        late = [span for span in plan.spans if span.sequence.slot < 0 and span.sequence.finish_reason is None]
        for span in late:
            span.sequence.finish_reason = "late"
        outputs = super().commit(plan, result)
        for span in late:
            span.sequence.finish_reason = None
        return outputs


class CommitsWhatHasEnded(PagedBatching):
    def commit(self, plan, result):
        reasons = [(span.sequence, span.sequence.finish_reason) for span in plan.spans]
        for sequence, _ in reasons:
            sequence.finish_reason = None
        outputs = super().commit(plan, result)
        return outputs


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (
            KeepsVictimsInThePlan,
            "somebody overtook the head of the queue|two spans in one slot|wrong token",
        ),
        (PreemptsTheBest, "the best sequence lost its place"),
        (LeaksSlots, "a slot is lost, or taken twice"),
        (LeaksPages, "pages of who does not run"),
        (SamplesFromChunks, "planned too far"),
        (IgnoresTheBudget, "more tokens than the budget"),
        (LetsOthersOvertake, "somebody overtook the head of the queue"),
        (ForgetsSiblings, "there is work, and nothing is done"),
        (ForgetsTheLoad, "the queue's load is not what waits in it"),
        (PlansPastTheEnd, "planned past its end"),
        (ResumesTooSoon, "planned too far|it decodes, and its prompt is not stored"),
        (KeepsTheTokenOfAStepThatIsOff, "planned too far|it decodes, and its prompt is not stored"),
        (KeepsOldTables, "wrong token"),
        (LosesLateTokens, "planned too far"),
        (CommitsWhatHasEnded, "an output after the end|the queue's load is not what waits in it"),
    ],
)
def test_a_broken_scheduler_is_noticed(broken, noticed):
    with pytest.raises(AssertionError, match=noticed):
        for seed in range(120):
            random_world(seed, broken, lag=seed % 3)
