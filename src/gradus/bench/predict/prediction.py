"""The best that a phase could reach: a workload played through its schedule, with the roofline as the clock.

A policy is the phase's scheduler in miniature: it says what runs in each step, not how fast. The clock adds each step's
floor, and requests arrive while it runs, so the prediction has latencies too, not just a rate.
No torch here.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from gradus.bench.predict.roofline import Cost, Machine, SpanShape, Widths, step_cost
from gradus.bench.statistics import percentile
from gradus.bench.workloads import Job, Workload
from gradus.models.config import ModelConfig


@dataclass(slots=True)
class Clock:
    """Simulated time, in seconds. `times[i]` collects when job i's tokens came."""

    config: ModelConfig
    widths: Widths
    machine: Machine
    times: list[list[float]]
    budget: int | None = None  # most tokens per step, for a schedule that cuts prompts
    now: float = 0.0
    steps: int = 0
    rows: int = 0
    cost: Cost = field(default_factory=Cost)

    def step(self, spans: Sequence[SpanShape]) -> None:
        cost = step_cost(self.config, spans, self.widths)
        self.now += cost.seconds(self.machine)
        self.steps += 1
        self.rows += sum(span.rows for span in spans)
        self.cost += cost

    def tokens(self, jobs: Iterable[int]) -> None:
        for job in jobs:
            self.times[job].append(self.now)

    def wait_until(self, time: float) -> None:
        self.now = max(self.now, time)


Policy = Callable[[Sequence[Job], Clock, int], None]
"""policy(jobs, clock, batch): run all jobs, at most `batch` at a time."""


def recompute(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p00: one sequence at a time, recomputed for every token. Span (0, n)."""
    for index, job in enumerate(jobs):
        clock.wait_until(job.at)
        for generated in range(job.output):
            clock.step([SpanShape(0, job.prompt + generated)])
            clock.tokens([index])


def cached(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p01: one sequence at a time; its prompt once, then one row per token. Spans (0, P), then (n, 1)."""
    for index, job in enumerate(jobs):
        clock.wait_until(job.at)
        clock.step([SpanShape(0, job.prompt)])
        clock.tokens([index])
        for generated in range(1, job.output):
            clock.step([SpanShape(job.prompt + generated - 1, 1)])
            clock.tokens([index])


def static(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p02: up to `batch` waiting jobs start together, padded to the longest, and end together.

    A shorter prompt gets pad rows in the prefill; a finished sequence stays as padding until the last one ends.
    """
    waiting = deque(enumerate(jobs))
    while waiting:
        clock.wait_until(waiting[0][1].at)
        group: list[tuple[int, Job]] = []
        while waiting and len(group) < batch and waiting[0][1].at <= clock.now:
            group.append(waiting.popleft())
        width = max(job.prompt for _, job in group)
        clock.step([SpanShape(0, width) for _ in group])
        clock.tokens(index for index, _ in group)
        for generated in range(1, max(job.output for _, job in group)):
            clock.step([SpanShape(width + generated - 1, 1) for _ in group])
            clock.tokens(index for index, job in group if generated < job.output)


def continuous(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p03 and p04: finished sequences leave and waiting ones enter at every step; no pad rows, and prefills run among
    decodes. Assumes enough memory."""
    _Continuous(jobs, clock, batch).run()


def reusing(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p05 and p06: prefixes that an earlier job computed are reused. If the clock has a budget, prompts are cut to keep
    every step within it."""
    _Continuous(jobs, clock, batch, reuse=True).run()


class _Continuous:
    """The state of a schedule that is chosen anew at every step. Jobs run in order of arrival."""

    def __init__(self, jobs: Sequence[Job], clock: Clock, batch: int, *, reuse: bool = False) -> None:
        self.jobs, self.clock, self.batch, self.reuse = jobs, clock, batch, reuse
        self.waiting = [(job.at, index) for index, job in enumerate(jobs) if job.follows is None]
        heapify(self.waiting)
        self.running: dict[int, int] = {}  # job → positions stored
        self.computed: dict[int, int] = {}  # group → how many of its shared tokens are in the cache

    def run(self) -> None:
        while self.waiting or self.running:
            if not self.running:
                self.clock.wait_until(self.waiting[0][0])
            while self.waiting and len(self.running) < self.batch and self.waiting[0][0] <= self.clock.now:
                _, index = heappop(self.waiting)
                self.running[index] = self._hit(self.jobs[index])
            self._step()

    def _hit(self, job: Job) -> int:
        if not self.reuse:
            return 0
        before = 0 if job.follows is None else self.jobs[job.follows].prompt + self.jobs[job.follows].output - 1
        return min(max(before, min(job.shared, self.computed.get(job.group, 0))), job.prompt - 1)

    def _step(self) -> None:
        left = self.clock.budget or sys.maxsize
        spans: dict[int, SpanShape] = {}
        for index in sorted(self.running, key=lambda index: self.running[index] < self.jobs[index].prompt):
            job, stored = self.jobs[index], self.running[index]
            rows = min(left, max(1, job.prompt - stored))  # decodes came first
            if rows == 0:
                break
            spans[index] = SpanShape(stored, rows, logits=int(stored + rows >= job.prompt))
            left -= rows
        self.clock.step(list(spans.values()))
        self.clock.tokens(index for index, span in spans.items() if span.logits)
        for index, span in spans.items():
            self._advance(index, span.start + span.rows)

    def _advance(self, index: int, stored: int) -> None:
        job = self.jobs[index]
        self.running[index] = stored
        if stored >= job.prompt:
            self.computed[job.group] = max(self.computed.get(job.group, 0), job.shared)
        if stored == job.prompt + job.output - 1:
            del self.running[index]
            for follower, other in enumerate(self.jobs):
                if other.follows == index:
                    heappush(self.waiting, (self.clock.now + other.at, follower))


def arrived(jobs: Sequence[Job], times: Sequence[Sequence[float]]) -> list[float]:
    """When each job arrived: a conversation's next turn counts from the end of the previous one."""
    return [job.at if job.follows is None else times[job.follows][-1] + job.at for job in jobs]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Floors: no engine that runs this policy on this machine is faster. Times in seconds."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    ttft_p50: float
    itl_p50: float | None
    e2e_p50: float
    steps: int
    rows: int
    bytes: float
    flops: float


def predict(
    policy: Policy,
    workload: Workload,
    config: ModelConfig,
    widths: Widths,
    machine: Machine,
    batch: int,
    budget: int | None = None,
) -> Prediction:
    clock = Clock(config, widths, machine, times=[[] for _ in workload.jobs], budget=budget)
    policy(workload.whole, clock, batch)
    runs = list(zip(arrived(workload.jobs, clock.times), clock.times, strict=True))
    gaps = [later - earlier for times in clock.times for earlier, later in pairwise(times)]
    return Prediction(
        seconds=clock.now,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        ttft_p50=percentile([times[0] - at for at, times in runs], 50),
        itl_p50=percentile(gaps, 50) if gaps else None,
        e2e_p50=percentile([times[-1] - at for at, times in runs], 50),
        steps=clock.steps,
        rows=clock.rows,
        bytes=clock.cost.bytes,
        flops=clock.cost.flops,
    )
