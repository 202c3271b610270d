"""Clients: processes that send jobs when they are due, or as soon as others end, and note when tokens arrive.

All requests are written before the clock starts, and several processes divide them and begin at the same moment, so
that the load is the server's limit and never the generator's. `Run.late_s` says whether that held.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

from gradus.bench.statistics import percentile
from gradus.load.answer import UNFINISHED, Answer
from gradus.load.asking.routes import Writing, route_at
from gradus.load.asking.target import Target
from gradus.load.asking.wire import Connection
from gradus.load.jobs.job import Job
from gradus.load.objective import Objective

MOST_PROCESSES = 8
STREAMS_EACH = 32  # streams that one process reads without being late
LEAD_S = 0.3  # between sending the processes their work and its start
SENT_A_SECOND = 50e6  # bytes: written, sent to a process and read there
IDLE_S = 2.0  # a connection that was idle for longer is not used again: the server may be about to close it
CONNECT_S = 10.0
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Rules:
    """How jobs are sent.

    limit: the most requests under way at once; None: each is sent when it is due (an open load).
    timeout: seconds for one answer. patience: seconds after the last job is sent, when unfinished answers are ended.
    objective, most_missed: as soon as more answers than this have missed the objective, the run ends early.
    """

    limit: int | None = None
    timeout: float = TIMEOUT_S
    patience: float = TIMEOUT_S
    objective: Objective | None = None
    most_missed: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One process's share of a run. numbers: the jobs' places in the whole load. start: by CLOCK_MONOTONIC."""

    target: Target
    path: str
    exact: bool
    numbers: Sequence[int]
    jobs: Sequence[Job]
    requests: Sequence[bytes]
    rules: Rules
    start: float


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of a load. answers: to the requests that were sent, in the jobs' order. start: by CLOCK_MONOTONIC.

    stopped: it ended early, as the objective could no longer be met. cpu_s: each process's processor time.
    """

    answers: list[Answer]
    start: float
    planned: int
    stopped: bool
    cpu_s: list[float]

    @property
    def late_s(self) -> float:
        """The generator's lateness, p99, in seconds."""
        return percentile([answer.sent - answer.due for answer in self.answers], 99) if self.answers else 0.0

    def after(self, seconds: float) -> list[Answer]:
        """The answers to requests that were due at least this long after the start: without those of a warm-up."""
        return [answer for answer in self.answers if answer.due >= self.start + seconds]


def processes_for(streams: int) -> int:
    """Count the processes that this number of streams needs on this machine; 1 is this process alone."""
    cores = max(1, (os.cpu_count() or 1) // 2)
    return max(1, min(MOST_PROCESSES, cores, -(-streams // STREAMS_EACH)))


@contextmanager
def crew(count: int | None = None) -> Iterator[ProcessPoolExecutor | None]:
    """Client processes, each already started: starting one takes as long as a run. None for one: this process sends."""
    count = processes_for(MOST_PROCESSES * STREAMS_EACH) if count is None else count
    if count == 1:
        yield None
        return
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for each in [pool.submit(time.sleep, 0.2) for _ in range(count)]:
            each.result()
        yield pool


def run(
    target: Target, writing: Writing, jobs: Sequence[Job], rules: Rules, pool: ProcessPoolExecutor | None = None
) -> Run:
    """Send a load and wait for its end."""
    writing = replace(writing, host=target.name, headers=target.headers)
    requests = [writing.request(job) for job in jobs]
    processes = 1 if pool is None else min(pool._max_workers, rules.limit or len(jobs))  # type: ignore[attr-defined]
    lead = 0.0 if pool is None else LEAD_S + sum(map(len, requests)) / SENT_A_SECOND
    start = time.monotonic() + lead
    parts = [
        Part(
            target,
            writing.path,
            writing.exact,
            range(part, len(jobs), processes),
            jobs[part::processes],
            requests[part::processes],
            _share(rules, part, processes),
            start,
        )
        for part in range(processes)
    ]
    if pool is None:
        found = [work(parts[0])]
    else:
        found = [each.result() for each in [pool.submit(work_alone, part) for part in parts]]
    answers = sorted((answer for each, _, _ in found for answer in each), key=lambda answer: answer.index)
    return Run(answers, start, len(jobs), any(stopped for _, stopped, _ in found), [cpu for _, _, cpu in found])


def _share(rules: Rules, part: int, processes: int) -> Rules:
    """Divide the limit. Misses are divided with a margin, since chance gives one process more than its share."""
    limit = None if rules.limit is None else len(range(part, rules.limit, processes))
    missed = rules.most_missed
    if missed is not None and processes > 1:
        missed = max(3, 2 * missed // processes)
    return replace(rules, limit=limit, most_missed=missed)


Worked = tuple[list[Answer], bool, float]


def work_alone(part: Part) -> Worked:
    """Do a part's work in a process that has nothing else to do: its memory is not searched meanwhile."""
    gc.collect()
    gc.disable()
    try:
        return work(part)
    finally:
        gc.enable()


def work(part: Part) -> Worked:
    before = time.process_time()
    sender = Sender(part)
    asyncio.run(sender.send())
    return sender.answers, sender.stopped, time.process_time() - before


class Sender:
    """Sends one part."""

    def __init__(self, part: Part) -> None:
        self.answers: list[Answer] = []
        self.stopped = False
        self._part, self._rules = part, part.rules
        self._route = route_at(part.path)
        self._context = part.target.context()
        self._idle: list[tuple[float, Connection]] = []
        self._busy: set[Connection] = set()
        self._missed, self._over = 0, False

    async def send(self) -> None:
        part = self._part
        self._begun = asyncio.Semaphore(0)  # released by every job that is not late, at its first token or its end
        self._early = sum(not job.late for job in part.jobs)
        places = iter(range(len(part.jobs)))
        if self._rules.limit is None:
            await self._wait_for([asyncio.create_task(self._one(place)) async for place in self._due(places)])
        else:
            users = min(self._rules.limit, len(part.jobs))
            await asyncio.gather(*(self._user(places) for _ in range(users)))
        for _, connection in self._idle:
            connection.close()

    async def _due(self, places: Iterator[int]) -> AsyncIterator[int]:
        """Yield jobs at the times when they are due, whatever the server does."""
        for place in places:
            await self._until(place)
            if self._over:
                return
            yield place

    async def _user(self, places: Iterator[int]) -> None:
        """Send one job after the other; users take them from one line."""
        for place in places:
            free = time.monotonic()
            await self._until(place)
            if self._over:
                return
            await self._one(place, free)

    async def _until(self, place: int) -> None:
        await asyncio.sleep(max(0.0, self._part.start + self._part.jobs[place].at - time.monotonic()))

    async def _wait_for(self, tasks: "list[asyncio.Task[None]]") -> None:
        """Wait for the answers as long as the rules say, and end the others."""
        if tasks:
            await asyncio.wait(tasks, timeout=self._rules.patience)
        self._end()
        await asyncio.gather(*tasks)

    async def _one(self, place: int, free: float = 0.0) -> None:
        """Send a job and note its answer. free: when its user was, before which it was not due."""
        part, job = self._part, self._part.jobs[place]
        if job.late:
            for _ in range(self._early):
                await self._begun.acquire()
        answer = Answer(part.numbers[place], max(part.start + job.at, free))
        answer.sent = time.monotonic()
        if job.late:
            answer.due = answer.sent
        self.answers.append(answer)
        try:
            connection = self._kept() or await self._connect()
        except (OSError, TimeoutError) as error:
            answer.last, answer.error, answer.detail = time.monotonic(), "connection", str(error)[:200] or "timed out"
        else:
            if self._over:
                answer.last, answer.error = time.monotonic(), UNFINISHED
                connection.close()
            else:
                await self._ask(connection, part.requests[place], job, answer)
        if not answer.events and not job.late:
            self._begun.release()
        self._judge(answer)

    async def _ask(self, connection: Connection, request: bytes, job: Job, answer: Answer) -> None:
        self._busy.add(connection)
        on_first = (lambda: None) if job.late else self._begun.release
        await connection.ask(request, job.output, answer, self._rules.timeout, on_first)
        self._busy.discard(connection)
        if connection.open:
            self._idle.append((time.monotonic(), connection))

    def _kept(self) -> Connection | None:
        """Take a connection that was used lately, if there is one."""
        while self._idle:
            since, connection = self._idle.pop()
            if connection.open and time.monotonic() - since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        target = self._part.target
        making = asyncio.get_running_loop().create_connection(
            lambda: Connection(self._route, self._part.exact), target.host, target.port, ssl=self._context
        )
        _, connection = await asyncio.wait_for(making, CONNECT_S)
        return connection

    def _judge(self, answer: Answer) -> None:
        rules = self._rules
        if rules.most_missed is None or self._over:
            return
        self._missed += not (rules.objective or Objective()).met(answer)
        if self._missed > rules.most_missed:
            self.stopped = True
            self._end()

    def _end(self) -> None:
        """Send nothing more, and end what is under way."""
        self._over = True
        for connection in list(self._busy):
            connection.give_up()
