"""A workload played through a phase's schedule, with the roofline as its clock: what the phase could reach at best.

A policy says what a phase runs in each step, and nothing about how fast: it is the phase's scheduler in miniature. The
clock adds each step's floor, and requests arrive while it runs; so the prediction has latencies too, not just a rate.
No torch here.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gradus.bench.roofline import Cost, Machine, SpanShape, Widths, step_cost
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
    """p00: one at a time, and the whole sequence for every token. Span (0, n)."""
    for index, job in enumerate(jobs):
        clock.wait_until(job.at)
        for generated in range(job.output):
            clock.step([SpanShape(0, job.prompt + generated)])
            clock.tokens([index])


def cached(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p01: one at a time; the prompt once, then a row a token. Spans (0, P), then (n, 1)."""
    for index, job in enumerate(jobs):
        clock.wait_until(job.at)
        clock.step([SpanShape(0, job.prompt)])
        clock.tokens([index])
        for generated in range(1, job.output):
            clock.step([SpanShape(job.prompt + generated - 1, 1)])
            clock.tokens([index])


def static(jobs: Sequence[Job], clock: Clock, batch: int) -> None:
    """p02: up to `batch` of those that wait start together, padded to the longest, and end together.

    A shorter prompt has pad rows in the prefill; a sequence that is done runs on as padding until the last one is.
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
    """p03: at every step those that are done leave and those that wait enter; no pad rows, prefills among decodes."""
    waiting = deque(enumerate(jobs))
    running: dict[int, int] = {}  # job → tokens generated
    while waiting or running:
        if not running:
            clock.wait_until(waiting[0][1].at)
        while waiting and len(running) < batch and waiting[0][1].at <= clock.now:
            running[waiting.popleft()[0]] = 0
        clock.step([_next_span(jobs[index], generated) for index, generated in running.items()])
        clock.tokens(running)
        running = {index: done + 1 for index, done in running.items() if done + 1 < jobs[index].output}


def _next_span(job: Job, generated: int) -> SpanShape:
    return SpanShape(0, job.prompt) if generated == 0 else SpanShape(job.prompt + generated - 1, 1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Floors: no engine that runs this policy on this machine is faster. Times in seconds."""

    seconds: float
    output_tokens: int
    ttft_p50: float
    itl_p50: float | None
    e2e_p50: float
    steps: int
    rows: int
    bytes: float
    flops: float


def predict(
    policy: Policy, workload: Workload, config: ModelConfig, widths: Widths, machine: Machine, batch: int
) -> Prediction:
    clock = Clock(config, widths, machine, times=[[] for _ in workload.jobs])
    policy(workload.jobs, clock, batch)
    runs = list(zip(workload.jobs, clock.times, strict=True))
    gaps = [later - earlier for times in clock.times for earlier, later in pairwise(times)]
    return Prediction(
        seconds=clock.now,
        output_tokens=workload.output_tokens,
        ttft_p50=percentile([times[0] - job.at for job, times in runs], 50),
        itl_p50=percentile(gaps, 50) if gaps else None,
        e2e_p50=percentile([times[-1] - job.at for job, times in runs], 50),
        steps=clock.steps,
        rows=clock.rows,
        bytes=clock.cost.bytes,
        flops=clock.cost.flops,
    )
