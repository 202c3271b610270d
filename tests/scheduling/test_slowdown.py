"""A long prompt slows the sequences that decode by no more than was promised, and still ends.

The model is a formula: the roofline of an H200 moves the clock, and nothing else does.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from gradus.bench.predict.roofline import Machine, SpanShape, step_cost
from gradus.bench.predict.simulation import BFLOAT16, VOCABULARY, SimulatedRunner, SimulatedStep, VirtualClock
from gradus.cache.disk.names import Names
from gradus.cache.host.tier import HostTier
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import Policy
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Sampled, Span
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import Sequence
from gradus.engine.time_limits import TimeLimits
from gradus.models.config import even_position
from gradus.models.shapes import SHAPES
from gradus.scheduling.draft_shapes import DraftShapes
from gradus.scheduling.drafting import DraftControl
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_target import LARGEST_RISE, StepTarget
from tests.pairwise import first
from tests.scheduling.replica import ask
from tests.scheduling.world import World

CONFIG, H200 = SHAPES["llama-3.2-1b"], Machine(bandwidth=4.2e12, rate=7.7e14)
LIMITS = ModelLimits(VOCABULARY, CONFIG.context_length)
TARGET, BUDGET, STREAMS = 0.01, 8192, 8
LONG = 40_000  # tokens that take a quarter of a second, 25 full steps


@dataclass
class Arriving:
    """A step's result, which the device has at time `end`."""

    step: SimulatedStep
    end: float
    clock: VirtualClock

    @property
    def rows(self) -> int:
        return self.step.rows

    def get(self) -> Sampled:
        self.clock.now = max(self.clock.now, self.end)
        return self.step.get()


class Copied:
    done = True


class CopiesAtOnce:
    """Copies between a GPU and host memory that take no time."""

    page_bytes, at_once = 1, 64

    def out(self, pages, places):
        return Copied()

    def back(self, places, pages):
        return Copied()

    def open(self, after):
        """Nothing is ever late."""

    def fence(self, copy, *, steps=True):
        """Nothing is ever late."""


class Crowd:
    """An engine whose streams decode. seconds: of steps that streams shared; plain: what their decodes alone took.
    chunks: the length of each chunk of the prompt "long". between: the steps after each that it was not in."""

    def __init__(
        self,
        slowdown: float = 1.5,
        streams: int = STREAMS,
        lag: int = 0,
        micro_batches: int = 1,
        policy: Policy = "fcfs",
        target: float = TARGET,
    ) -> None:
        self.clock, self.free = VirtualClock(), 0.0
        self.fixed = 0.0  # seconds that a step takes longer for having prompts
        self.target = StepTarget(target, even_position(CONFIG), self.clock, micro_batches, slowdown)
        times = TimeLimits(self.clock)
        tier = HostTier(Names({}, b"secret", 16), CopiesAtOnce(), 1 << 13, 1 << 15, 16, ahead=16)
        self.cache = PagedCache(1 << 15, 16, index=PrefixIndex(), tier=tier)
        self.scheduler = Scheduler(self.cache, 64, BUDGET, policy, times, None, micro_batches, self.target)
        self.runner = SimulatedRunner(CONFIG, self.clock, 64, H200)
        self.engine = Engine(self.scheduler, self, LIMITS, lag, times)
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.first: dict[str, float] = {}  # when each request's first token came
        self.reasons: dict[str, str] = {}
        self.forget()
        for number in range(streams):
            self.ask(f"stream {number}", 200, 20_000)
        for _ in range(10):
            self.engine.step()
        self.read("first", 2000)
        self.steps(10)
        self.forget()

    def forget(self) -> None:
        self.seconds = self.plain = self.longest = 0.0
        self.chunks: list[int] = []
        self.between: list[int] = []

    def run(self, plan: Plan):
        """Launch a step: the device runs one after the other, and the host goes on."""
        launched = self.clock.now
        result = self.runner.run(plan)
        took = self.clock.now - launched + (self.fixed if plan.spans else 0.0)
        self.clock.now = launched
        self.free = max(launched, self.free) + took
        if len(plan.decodes):
            alone = [SpanShape(start, 1, 1) for start in plan.decodes.starts.tolist()]
            self.plain += step_cost(CONFIG, alone, BFLOAT16).seconds(H200)
            self.seconds, self.longest = self.seconds + took, max(self.longest, took)
        mine = [len(span.tokens) for span in plan.spans if span.sequence.request_id == "long"]
        self.chunks += mine
        if mine:
            self.between.append(0)
        elif self.between:
            self.between[-1] += 1
        return Arriving(result, self.free, self.clock)

    def ask(self, name: str, prompt: int, answer: int = 1, begins: tuple[int, ...] = (), n: int = 1, **how) -> None:
        draw = np.random.default_rng(list(name.encode()))
        self.prompts[name] = begins + tuple(draw.integers(VOCABULARY, size=prompt - len(begins)).tolist())
        params = SamplingParams(max_tokens=answer, ignore_eos=True, seed=0, n=n)
        self.engine.submit(Request.create(name, self.prompts[name], params, LIMITS, SchedulingParams(**how)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            for output in self.engine.step():
                self.first.setdefault(output.request_id, self.clock.now)
                if output.finish_reason:
                    self.reasons[output.request_id] = output.finish_reason

    def read(self, name: str, prompt: int = LONG, most: int = 3000, **given) -> int:
        """Ask for a prompt, and step until its first token. Returns the number of steps."""
        self.ask(name, prompt, **given)
        return self.until_first_token(name, most)

    def until_first_token(self, name: str, most: int = 3000) -> int:
        for count in range(most):
            if name in self.first:
                return count
            self.steps(1)
        raise AssertionError(f"{name} has no token after {most} steps")

    def move_to_host_memory(self) -> None:
        """Have the pool give up all pages that no sequence holds, and host memory keep them."""
        self.cache.tier.keep(list(self.cache.pool.idle))
        self.cache.forget()

    def until_it_sits_out(self) -> None:
        while not self.between or self.between[-1] < 2:
            self.steps(1)

    @property
    def slowdown(self) -> float:
        """How many times as long the decodes took as they would have alone."""
        return self.seconds / self.plain


@pytest.mark.parametrize("slowdown", first([1.2, 3.0, 1.5], 2))
def test_decodes_take_as_many_times_as_long_as_was_promised_and_the_prompt_gets_the_rest(slowdown):
    crowd = Crowd(slowdown)
    crowd.read("long")
    assert 1 + 0.85 * (slowdown - 1) < crowd.slowdown < 1 + 1.1 * (slowdown - 1)
    assert crowd.longest < 1.2 * TARGET  # an estimate from other positions may be off
    assert len(crowd.chunks) < 60  # chunks stay worth their fixed cost


@pytest.mark.parametrize("lag", [1, 2])
def test_steps_planned_ahead_keep_the_promise_too(lag):
    crowd = Crowd(lag=lag)
    crowd.read("long")
    assert 1.35 < crowd.slowdown < 1.55


def test_the_micro_batches_of_a_pipeline_keep_it_too():
    crowd = Crowd(micro_batches=2, lag=1)
    crowd.read("long")
    assert 1.25 < crowd.slowdown < 1.6


def test_without_a_promise_every_step_has_a_chunk():
    crowd = Crowd(slowdown=math.inf)
    crowd.read("long")
    assert crowd.slowdown > 5 and not any(crowd.between[:-1])


def test_a_prompt_that_is_not_long_sits_no_step_out():
    crowd = Crowd()
    crowd.read("long", LONG // 4)
    assert len(crowd.chunks) > 1 and not any(crowd.between[:-1])


def test_short_prompts_whose_steps_have_a_fixed_cost_do_not_make_an_ordinary_one_long():
    took = []
    for slowdown in (1.3, math.inf):
        crowd = Crowd(slowdown, target=0.1)
        crowd.fixed = 0.005
        for number in range(60):
            crowd.read(f"short {number}", 30)
        began = crowd.clock.now
        crowd.read("long", LONG // 2)
        took.append(crowd.clock.now - began)
    assert took[0] < 2 * took[1] < 0.3  # by the short prompts' pace it would take more than a second


def test_a_prompt_alone_takes_the_whole_budget_and_owes_nothing():
    crowd = Crowd(streams=0)
    crowd.read("long")
    assert len(crowd.chunks) == math.ceil(LONG / BUDGET) and crowd.target._debt == 0


def test_streams_that_come_later_are_promised_as_much():
    crowd = Crowd(streams=0)
    crowd.ask("long", LONG)
    crowd.steps(2)
    for number in range(STREAMS):
        crowd.ask(f"later {number}", 50, 5000)
    crowd.steps(5)
    crowd.forget()
    crowd.until_first_token("long")
    assert len(crowd.chunks) > 5 and 1.3 < crowd.slowdown < 1.65


def test_a_short_prompt_starts_in_a_step_that_the_long_one_sits_out():
    crowd = Crowd()
    crowd.ask("long", LONG)
    crowd.until_it_sits_out()
    assert crowd.read("short", 30) == 1 and crowd.between[-1] == 3


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_short_prompt_starts_in_a_step_that_a_long_one_sits_out_before_it_began(policy):
    crowd = Crowd(policy=policy)
    crowd.read("long")
    assert crowd.target._debt > 0
    crowd.ask("next", LONG)
    crowd.steps(2)
    assert not crowd.scheduler.current.prefilling, "it waits until the first one's last chunk is paid for"
    assert crowd.read("short", 30) == 1
    crowd.until_first_token("next")


def test_a_short_prompt_passes_an_urgent_long_one_that_has_not_begun():
    crowd = Crowd(policy="priority")
    crowd.ask("long", LONG, priority=1)
    crowd.until_it_sits_out()
    crowd.ask("urgent", LONG, priority=-1)
    assert crowd.read("short", 30, priority=-1) == 1 and crowd.between[-1] > 2
    crowd.until_first_token("urgent")
    assert "long" not in crowd.first


def test_a_prefix_that_a_long_prompt_computes_is_not_computed_twice_while_it_sits_out():
    crowd = Crowd()
    crowd.ask("long", LONG)
    crowd.until_it_sits_out()
    crowd.read("same beginning", LONG - 80, begins=crowd.prompts["long"][: LONG - 100])
    assert crowd.scheduler.cached_tokens >= 0.95 * LONG and sum(crowd.chunks) == LONG


def test_samples_of_a_long_prompt_start_as_soon_as_the_first_has_read_it():
    crowd = Crowd()
    crowd.ask("long", LONG, 20, n=3)
    crowd.until_first_token("long")
    assert crowd.target._debt > 0
    crowd.steps(1)
    assert [each.index for each in crowd.scheduler.running if each.request_id == "long"] == [0, 1, 2]


def test_a_prompt_advances_however_close_to_1_the_slowdown_is():
    crowd = Crowd(slowdown=1.0001, streams=4)
    crowd.read("long")
    assert 1.2 < crowd.slowdown < 1.3  # it counts as much as a stream


def test_a_session_in_host_memory_is_no_long_prompt():
    crowd = Crowd()
    crowd.read("session")
    crowd.move_to_host_memory()
    crowd.ask("long", LONG)
    crowd.until_it_sits_out()
    before = crowd.scheduler.cached_tokens
    assert crowd.read("next turn", LONG + 30, begins=crowd.prompts["session"]) <= 3
    assert crowd.scheduler.cached_tokens - before >= LONG - 16 and "long" not in crowd.first


def test_a_session_in_host_memory_passes_a_long_prompt_only_if_all_its_pages_find_room():
    crowd = Crowd()
    crowd.read("session")
    crowd.move_to_host_memory()
    crowd.ask("long", LONG)
    crowd.until_it_sits_out()
    crowd.ask("next turn", LONG + 30, begins=crowd.prompts["session"])
    scheduler, passing = crowd.scheduler, crowd.scheduler.passing
    long = next(each for each in scheduler.running if each.request_id == "long")
    needed = crowd.cache.pages_for(passing.rest(long)) + crowd.cache.pages_for(LONG + 30)
    passes = [passing.next(long, scheduler.waiting, [long], room, 2) for room in (needed - 1, needed)]
    assert passes[0] is None and passes[1] is not None


def test_where_many_prompts_wait_a_few_streams_do_not_hold_them_up():
    crowd = Crowd(slowdown=1.2, streams=2)
    for number in range(7):
        crowd.ask(f"also long {number}", LONG)
    crowd.read("long")
    assert crowd.slowdown > 2  # eight prompts and two streams share to begin with, and one and two in the end


def test_a_prompt_goes_on_though_no_step_is_without_prompts():
    crowd = Crowd()
    crowd.ask("long", LONG)
    for count in range(2000):
        if "long" in crowd.first:
            break
        crowd.ask(f"short {count}", 20)
        crowd.steps(1)
    assert "long" in crowd.first and count > 100 and crowd.slowdown < 2.2


def test_a_time_limit_ends_a_long_prompt_that_sits_out_in_time():
    crowd = Crowd()
    began = crowd.clock.now
    crowd.ask("long", LONG, timeout=0.2)
    while "long" not in crowd.reasons:
        crowd.steps(1)
    assert crowd.reasons["long"] == "timeout" and crowd.clock.now - began < 0.2 + 2 * TARGET
    crowd.scheduler.check()


def test_an_interrupted_step_is_not_paid_for_in_full():
    crowd = Crowd()
    crowd.ask("long", LONG)
    crowd.until_it_sits_out()
    target, sequence = crowd.target, next(each for each in crowd.scheduler.running if each.request_id == "long")
    before = target._debt
    plan = Plan(spans=[Span(sequence, sequence.slot, 20_000, [0] * 500, 0, None)])
    target.began(plan)
    expected = target._debt - before
    target.took(plan, 100.0)
    assert expected > 0 and target._debt <= before + 1.001 * LARGEST_RISE * expected


def test_a_prompt_is_long_by_what_is_new_in_it():
    target = StepTarget(TARGET, 1000, VirtualClock(), slowdown=1.5)
    target.pace = 1e-3
    request = Request.create("a", [1] * 500, SamplingParams(max_tokens=1), LIMITS)
    sequence = Sequence(request, 0)
    assert target.is_long(sequence)
    sequence.known = 450
    assert not target.is_long(sequence)


def test_drafts_are_verified_in_the_steps_that_a_long_prompt_sits_out():
    control = DraftControl(DraftShapes(2, 4), 4, lag=0, adaptive=False)
    world = World(pages=400, budget=512, target=0.5, step_s=0.05, row_s=0.002, slowdown=1.5, drafting=control)
    world.add(ask("stream", 3, 300))
    for _ in range(6):
        world.step()
    world.add(ask("first", 40, 1))
    world.step()
    world.add(ask("long", 600, 1))
    drafted = []
    for _ in range(15):
        world.step()
        plan = world.runner.plan
        if not plan.spans:
            drafted.append(len(plan.decodes.drafts) > 0)
    assert not world.tokens["long", 0] and len(drafted) > 5 and all(drafted)
