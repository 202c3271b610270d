"""The scheduler alone: real requests, real pages, a real queue, and a model that is a formula.

The runner makes tokens from (seed, position) and lets virtual time pass: the roofline's floor for the step on a
published accelerator. So ten thousand requests take seconds, and every latency follows from the schedule alone, on any
machine. The wall clock measures only the scheduler itself. No torch here.
"""

import gc
import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradus.bench.predict.roofline import Machine, SpanShape, Widths, step_cost
from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import SEED, Workload, shared_prefix
from gradus.cache.paged import PagedCache
from gradus.cache.radix import PrefixIndex
from gradus.config.options import DEFAULT_PAGE_SIZE, Policy
from gradus.engine.engine import Engine
from gradus.engine.plan import Column, Plan, Result, Sampled
from gradus.engine.request import ModelLimits, Request, SamplingParams, SchedulingParams
from gradus.engine.sequence import Output, Sequence
from gradus.engine.time_limits import TimeLimits
from gradus.models.config import ModelConfig, even_position
from gradus.models.shapes import SHAPES
from gradus.scheduling.scheduler import Scheduler
from gradus.scheduling.step_target import StepTarget

SHAPE = "llama-3.1-8b"
H200 = Machine(bandwidth=4.8e12, rate=989e12)
"""The H200's published rates: HBM3e bytes per second, dense bfloat16 operations per second."""
BFLOAT16 = Widths(weight=2, kv=2)
VOCABULARY = 32_000
PREFIX, PROMPTS, ANSWERS = 256, (32, 512), (16, 256)
TOKEN_BUDGET = 2048
POSITIONS_EACH = 320
"""Cache positions per sequence of a full batch: fewer than the mean length needs, so that pages run out."""
OVERLOAD = 1.5
"""Requests arrive this many times as fast as the machine can serve them, so a queue builds up."""
QUEUE_EVERY = 20  # steps between two looks at the queue


class VirtualClock:
    """Seconds that pass only when the runner says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class SimulatedStep:
    """A step that completes immediately."""

    rows: int
    sampled: Sampled

    def get(self) -> Sampled:
        return self.sampled


class SimulatedRunner:
    """Gives every sampled row a token, and advances virtual time by the roofline's floor."""

    def __init__(self, config: ModelConfig, clock: VirtualClock, slots: int, machine: Machine = H200) -> None:
        self.config = config
        self.clock = clock
        self.machine = machine
        self._seeds = np.zeros(slots, np.uint64)  # by slot

    def run(self, plan: Plan) -> SimulatedStep:
        for admission in plan.admissions:
            self._seeds[admission.slot] = admission.request.seed_of(admission.index)
        spans = [span for span in plan.spans if span.logits]
        shapes = [SpanShape(start, 1, 1) for start in plan.decodes.starts.tolist()]
        shapes += [SpanShape(span.start, len(span.tokens), span.logits) for span in plan.spans]
        self.clock.now += step_cost(self.config, shapes, BFLOAT16).seconds(self.machine)
        slots = np.append(plan.decodes.slots, [span.slot for span in spans]).astype(np.int64)
        lengths = np.append(plan.decodes.starts + 1, [span.start + len(span.tokens) for span in spans])
        tokens = tokens_at(self._seeds[slots], lengths.astype(np.uint64))
        return SimulatedStep(plan.tokens, Sampled(tokens, [span.logits for span in plan.spans]))


def tokens_at(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> Column:
    """The tokens of sequences with these seeds at these positions, in any batch."""
    mixed = seeds * np.uint64(0x9E3779B97F4A7C15) + positions * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(20)) % np.uint64(VOCABULARY)).astype(np.int64)


@dataclass(slots=True)
class Stopwatch:
    """Wall seconds of the scheduler's calls, step by step, and the size of each step."""

    adds: list[float] = field(default_factory=list)
    schedules: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def sample(self) -> dict[str, Any]:
        """Quantiles: microseconds of an `add`, of a schedule, a commit and both, and sequences per step."""
        both = [schedule + commit for schedule, commit in zip(self.schedules, self.commits, strict=True)]
        each = [seconds / batch for seconds, batch in zip(both, self.batches, strict=True)]
        return {
            "steps": len(both),
            "add_us": _micro(self.adds),
            "schedule_us": _micro(self.schedules),
            "commit_us": _micro(self.commits),
            "step_us": _micro(both),
            "sequence_us": _micro(each),
            "batch": distribution(self.batches),
        }

    @property
    def seconds(self) -> float:
        return sum(self.adds) + sum(self.schedules) + sum(self.commits)


def _micro(seconds: Iterable[float]) -> dict[str, float]:
    return distribution(1e6 * second for second in seconds)


class Simulation:
    """A scheduler in its loop over a simulated machine, with a stopwatch at every call into it.

    step_target, slowdown: the engine's settings. machine: by default, an H200 by its published rates.
    """

    def __init__(
        self,
        batch: int,
        pages: int,
        policy: Policy = "fcfs",
        token_budget: int = TOKEN_BUDGET,
        *,
        shape: str = SHAPE,
        machine: Machine = H200,
        step_target: float | None = None,
        slowdown: float = math.inf,
    ) -> None:
        self.clock, config = VirtualClock(), SHAPES[shape]
        self.cache = PagedCache(pages, DEFAULT_PAGE_SIZE, index=PrefixIndex())
        times, target = TimeLimits(self.clock), None
        if step_target is not None:
            target = StepTarget(step_target, even_position(config), self.clock, slowdown=slowdown)
        self.scheduler = Scheduler(self.cache, batch, token_budget, policy, times, target=target)
        limits = ModelLimits(VOCABULARY, config.context_length)
        runner = SimulatedRunner(config, self.clock, batch, machine)
        self.watch = Stopwatch()
        self.engine = Engine(_Watched(self), runner, limits, times=times)

    def step(self) -> Ordered[Output]:
        return self.engine.step()

    @property
    def has_work(self) -> bool:
        return self.engine.has_work


class _Watched:
    """The scheduler, with the stopwatch running during the calls made for every request and step."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._scheduler = simulation, simulation.scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def add(self, sequences: Iterable[Sequence]) -> None:
        started = time.perf_counter()
        self._scheduler.add(sequences)
        self._simulation.watch.adds.append(time.perf_counter() - started)

    def schedule(self) -> Plan | None:
        started = time.perf_counter()
        plan = self._scheduler.schedule()
        if plan is not None:
            self._simulation.watch.schedules.append(time.perf_counter() - started)
            self._simulation.watch.batches.append(plan.size)
        return plan

    def commit(self, plan: Plan, result: Result) -> Ordered[Output]:
        result.get()  # making tokens is the machine's part
        started = time.perf_counter()
        outputs = self._scheduler.commit(plan, result)
        self._simulation.watch.commits.append(time.perf_counter() - started)
        return outputs


# -- what is measured --------------------------------------------------------------------------------------------------


def requests(count: int, batch: int, policy: Policy = "fcfs", seed: int = SEED) -> tuple[Workload, list[Request]]:
    """Make `count` requests with a common beginning, mixed lengths, and arrivals that outrun the machine.

    Under "priority" each gets one of three priorities, under "deadline" a number of seconds that suits its length.
    """
    rate = OVERLOAD / seconds_per_request(SHAPES[SHAPE], batch)
    workload = shared_prefix(count, significant(rate), PREFIX, PROMPTS, ANSWERS, seed)
    limits, draw = ModelLimits(VOCABULARY, SHAPES[SHAPE].context_length), Random(f"{seed} scheduling")
    made = []
    for number, arrival in enumerate(workload.arrivals(VOCABULARY)):
        params = SamplingParams(max_tokens=arrival.max_tokens, seed=number)
        share = draw.random()
        scheduling = {
            "fcfs": SchedulingParams(),
            "priority": SchedulingParams(priority=int(3 * share)),
            "deadline": SchedulingParams(deadline=arrival.max_tokens * (0.005 + 0.02 * share)),
        }[policy]
        made.append(Request.create(str(number), arrival.prompt, params, limits, scheduling))
    return workload, made


def seconds_per_request(config: ModelConfig, batch: int) -> float:
    """Machine time per request of mean length when `batch` of them decode together, without prefix hits."""
    prompt, answer = PREFIX + sum(PROMPTS) / 2, sum(ANSWERS) / 2
    context = SpanShape(int(prompt + answer / 2), 1)
    step = step_cost(config, [context] * batch, BFLOAT16).seconds(H200)
    prefill = step_cost(config, [SpanShape(PREFIX, int(prompt) - PREFIX)], BFLOAT16)
    return step * answer / batch + prefill.flops / H200.rate


def serve(count: int, batch: int, policy: Policy) -> tuple[Workload, dict[str, Any]]:
    """Serve all requests, from the first arrival to the last token."""
    workload, made = requests(count, batch, policy)
    simulation = Simulation(batch, batch * POSITIONS_EACH // DEFAULT_PAGE_SIZE, policy)
    pending = deque(zip((job.at for job in workload.jobs), made, strict=True))
    arrived: dict[str, float] = {}
    waits, latencies, tokens, missed = [], [], 0, 0
    queue, started = [], time.perf_counter()
    with frozen():
        while pending or simulation.has_work:
            if not simulation.has_work:
                simulation.clock.now = max(simulation.clock.now, pending[0][0])
            while pending and pending[0][0] <= simulation.clock.now:
                at, request = pending.popleft()
                arrived[request.id] = at
                simulation.engine.submit(request)
            for output in simulation.step():
                tokens += len(output.tokens)
                if output.finish_reason is None:
                    continue
                assert output.timings is not None
                latency = simulation.clock.now - arrived.pop(output.request_id)
                missed += output.finish_reason == "deadline"
                latencies.append(latency)
                waits.append(latency - output.timings.total_s + output.timings.queued_s)
            if len(simulation.watch.batches) % QUEUE_EVERY == 0:
                queue.append(simulation.scheduler.waiting_count)
    wall, watch, scheduler = time.perf_counter() - started, simulation.watch, simulation.scheduler
    scheduler.check()
    return workload, {
        "requests": count,
        "tokens": tokens,
        "scheduler_s": significant(watch.seconds),
        "wall_s": significant(wall),
        "requests_s": significant(count / watch.seconds),
        "tokens_s": significant(tokens / watch.seconds),
        "virtual_s": significant(simulation.clock.now),
        "latency_s": distribution(latencies),
        "wait_s": distribution(waits),
        "queue": distribution(queue),
        **watch.sample(),
        "preemptions": scheduler.preemptions,
        "deadline_misses": missed,
    }


def steady(batch: int, steps: int, prompt: int = 512) -> dict[str, Any]:
    """Measure pure decoding: a full batch, step after step, without arrivals or endings."""
    answer = prompt + 2 * steps  # none ends before the last prompt is done and all steps are taken
    simulation = Simulation(batch, batch * (prompt + answer) // DEFAULT_PAGE_SIZE + batch)
    for request in short_requests(batch, prompt, (answer, answer)):
        simulation.engine.submit(request)
    while simulation.scheduler.columns.count < batch:
        simulation.step()
    return _measured(simulation, steps, iter(()))


def queued(length: int, batch: int, steps: int) -> dict[str, Any]:
    """Measure a full batch of short requests with `length` more in the queue, each ending replaced at once."""
    simulation = Simulation(batch, batch * 128 // DEFAULT_PAGE_SIZE)
    supply = short_requests(length + (steps + 64) * batch, 32, (16, 64))
    for request in itertools.islice(supply, length + batch):
        simulation.engine.submit(request)
    for _ in range(64):  # until endings are spread evenly over the steps
        simulation.step()
        _refill(simulation, length, supply)
    return _measured(simulation, steps, supply, length)


def pages(count: int, windows: tuple[int | None, ...], waves: int) -> dict[str, Any]:
    """Measure the cache manager's microseconds per page, with free pages in the pool and with a full pool.

    Waves of 256 unrelated sequences, 64 tokens in and 128 out, are admitted, grown a page at a time, published and
    released. Fresh and full pools take turns, because a machine's speed drifts.
    """
    draw = Random(f"{SEED} pages")
    fresh, full = (PagedCache(count, DEFAULT_PAGE_SIZE, windows, PrefixIndex()) for _ in range(2))
    while not full.evictions:
        _wave(full, draw)
    with frozen():
        pairs = [(_wave(fresh, draw), _wave(full, draw)) for _ in range(waves)]
    assert not fresh.evictions, "the pool is too small to be fresh for so long"
    full.check()
    more = [after - before for before, after in pairs]
    medians = {"fresh_us": median(before for before, _ in pairs), "full_us": median(after for _, after in pairs)}
    return {name: significant(value) for name, value in medians.items()} | {"more_us": round(median(more), 3)}


def _wave(cache: PagedCache, draw: Random, sequences: int = 256) -> float:
    """Microseconds of the cache's calls per page taken."""
    prompt, answer = 64, 128
    drawn = [[int(draw.random() * VOCABULARY) for _ in range(prompt + answer)] for _ in range(sequences)]
    texts = dict(enumerate(drawn))
    started = time.perf_counter()
    for id, text in texts.items():
        cache.admit(id, text[:prompt])
        cache.reserve(id, prompt)
        cache.publish(id, text[:prompt])
    for _ in range(answer // DEFAULT_PAGE_SIZE):
        cache.add_pages([*texts])
    for id, text in texts.items():
        cache.publish(id, text)
        cache.release(id)
    taken = sequences * (prompt + answer) // DEFAULT_PAGE_SIZE * len(cache.windows)
    return 1e6 * (time.perf_counter() - started) / taken


def _measured(simulation: Simulation, steps: int, supply: Iterator[Request], length: int = 0) -> dict[str, Any]:
    with frozen():
        simulation.watch = Stopwatch()
        for _ in range(steps):
            simulation.step()
            _refill(simulation, length, supply)
    simulation.scheduler.check()
    return simulation.watch.sample()


def _refill(simulation: Simulation, length: int, supply: Iterator[Request]) -> None:
    while simulation.scheduler.waiting_count < length:
        simulation.engine.submit(next(supply))


def short_requests(count: int, prompt: int, answer: tuple[int, int], seed: int = SEED) -> Iterator[Request]:
    """Unrelated requests, one after the other."""
    limits, draw = ModelLimits(VOCABULARY, SHAPES[SHAPE].context_length), Random(f"{seed} short")
    params = [SamplingParams(max_tokens=tokens, seed=0) for tokens in range(answer[0], answer[1] + 1)]
    for number in range(count):
        tokens = tuple(int(draw.random() * VOCABULARY) for _ in range(prompt))
        yield Request.create(str(number), tokens, params[int(draw.random() * len(params))], limits)


@contextmanager
def frozen() -> Iterator[None]:
    """Limit the garbage collector to objects made from here on, as in a server that froze what it had loaded."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
