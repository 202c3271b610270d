"""Micro-batches keep the stages of a pipeline at work. Time is counted in ticks: a step takes one in each stage."""

from dataclasses import dataclass, field

import pytest

from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Sampled
from gradus.scheduling.scheduler import Scheduler
from tests.scheduling.replica import LIMITS, Done, Replica, ask, expected

PAGE = 16


@dataclass
class Arriving:
    """A step's result, which the last stage has at tick `end`."""

    done: Done
    end: int
    stages: "Stages"

    @property
    def rows(self) -> int:
        return self.done.rows

    def get(self) -> Sampled:
        self.stages.now = max(self.stages.now, self.end)
        return self.done.get()


@dataclass
class Stages:
    """A pipeline's runner. now: the host's tick; it runs the first stage itself, and waits for results."""

    count: int
    now: int = 0
    steps: int = 0
    free: list[int] = field(default_factory=list)  # by stage: the first tick at which it is idle
    known: dict[int, int] = field(default_factory=dict)  # by slot: the tick at which its newest token is back
    slots: list[set[int]] = field(default_factory=list)  # of each step
    replica: Replica = field(default_factory=lambda: Replica(PAGE))

    def __post_init__(self) -> None:
        self.free = [0] * self.count

    def run(self, plan: Plan) -> Arriving:
        slots = {span.slot for span in plan.expanded()}
        self.slots.append(slots)
        end = max(self.now, *(self.known.get(slot, 0) for slot in slots))
        for stage in range(self.count):
            end = self.free[stage] = max(end, self.free[stage]) + 1
        self.known |= dict.fromkeys(slots, end)
        self.now, self.steps = self.free[0], self.steps + 1
        return Arriving(self.replica.run(plan), end, self)

    @property
    def idle(self) -> float:
        """The share of all stages' ticks in which they wait."""
        return 1 - self.steps / max(self.free)


def served(stages: int, micro_batches: int, slots: int, requests: int, answer: int = 60, overlap: bool = True):
    """Run equal requests to their ends; returns the stages and the tokens per tick."""
    cache = PagedCache(64 * slots, PAGE, (None,), PrefixIndex())
    runner = Stages(stages)
    scheduler = Scheduler(cache, slots, micro_batches=micro_batches)
    engine = Engine(scheduler, runner, LIMITS, lag=micro_batches - 1 + overlap)
    asked = {f"r{number}": ask(f"r{number}", 5, answer) for number in range(requests)}
    tokens: dict[str, tuple[int, ...]] = dict.fromkeys(asked, ())
    for request in asked.values():
        engine.submit(request)
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
    engine.check()
    assert tokens == {name: expected(request) for name, request in asked.items()}
    return runner, requests * answer / max(runner.free)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stages", [2, 4])
def test_as_many_micro_batches_as_stages_leave_hardly_a_stage_idle(stages, overlap):
    """Both run four sequences per step."""
    lock_step, alone = served(stages, 1, slots=4, requests=4 * stages, overlap=overlap)
    pipelined, together = served(stages, stages, slots=4 * stages, requests=4 * stages, overlap=overlap)
    assert lock_step.idle >= 1 - 1 / stages
    assert pipelined.idle < 0.06, "the pipeline fills and empties once"
    assert together > 0.94 * stages * alone


def test_a_step_under_way_shares_no_sequence_with_the_next_one():
    runner, _ = served(3, 3, slots=7, requests=7)
    for earlier, later in zip(runner.slots, runner.slots[1:], strict=False):
        assert earlier.isdisjoint(later)
    assert [len(slots) for slots in runner.slots[3:9]] == [3, 2, 2, 3, 2, 2]


def test_a_single_sequence_goes_through_all_stages_token_by_token():
    runner, rate = served(3, 3, slots=6, requests=1)
    assert rate == pytest.approx(1 / 3) and runner.idle == pytest.approx(2 / 3)
