"""Drive a workload through an engine, time every token on the host's clock, and repeat, contenders taking turns.

The driver is open-loop: it submits a request at its arrival time, however busy the engine is, and counts latency from
that time, even if the driver was late. (A driver that waits for the engine before it sends the next request hides
queueing: coordinated omission.) A token counts when the host has it and could send it to a user. A step waits for the
device only in its commit, so no time is taken too early.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Protocol

import torch

from gradus.bench.declare.declaration import Goal
from gradus.bench.statistics import distribution, significant
from gradus.bench.workloads import Arrival
from gradus.engine.engine import Engine
from gradus.engine.plan import Plan, Result, Sampled
from gradus.engine.request import Request, SamplingParams
from gradus.engine.sequence import Output
from gradus.text.completion import Completion

RAW_REQUESTS = 8  # a sample keeps the times of up to this many requests; of more, only distributions


class ContenderFailed(RuntimeError):
    """A contender could not do the work. The report gives the message as the reason."""


def check_completions(completions: Sequence[Completion], params: Sequence[SamplingParams]) -> None:
    """Raise ContenderFailed unless every request got all tokens and log-probabilities that it asked for."""
    for completion, asked in zip(completions, params, strict=True):
        got = len(completion.token_ids)
        if got != asked.max_tokens:
            why = completion.error or completion.finish_reason
            raise ContenderFailed(f"{completion.request_id}: got {got} tokens instead of {asked.max_tokens}: {why}")
        if asked.logprobs is None:
            continue
        reports = completion.logprobs or ()
        whole = sum(len(token.top) == asked.logprobs for token in reports)
        if not len(reports) == whole == got:
            raise ContenderFailed(f"{completion.request_id}: got log-probabilities of {whole} of {got} tokens")


@dataclass
class Run:
    """One workload, run once. Times in seconds from the start; token_times[i] are those of arrival i.

    arrivals: the actual ones; a conversation's next turn has its whole prompt and its real arrival time.
    rows, padding_rows: rows that the model computed, and those among them that are padding; None if unknown.
    cached_tokens: prompt positions found in a cache. preemptions: how many times a sequence was preempted.
    host_s: time that steps took outside the model (see `Stopwatch`). peak_bytes: the contender's own memory.
    cache_bytes: the most cache that sequences held. cache_waste: percent of it that stored nothing.
    """

    arrivals: Sequence[Arrival]
    token_times: list[list[float]]
    steps: int | None = None
    rows: int | None = None
    padding_rows: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    host_s: float | None = None
    peak_bytes: int | None = None
    cache_bytes: int | None = None
    cache_waste: float | None = None

    def check(self) -> None:
        """Raise ContenderFailed unless every request got exactly the tokens that it asked for."""
        for index, (arrival, times) in enumerate(zip(self.arrivals, self.token_times, strict=True)):
            if len(times) != arrival.max_tokens:
                raise ContenderFailed(f"request {index} got {len(times)} tokens instead of {arrival.max_tokens}")

    def sample(self, goal: Goal | None = None) -> dict[str, Any]:
        """The run as JSON, for results.json. Latencies count from a request's arrival.

        ttft: until the first token. itl: every gap between deliveries of a request's tokens; tokens_at_once: tokens per
        delivery on average, if more than one. tpot: a request's mean time per token after the first. e2e: until the
        last token. seconds: from the first arrival to the last token. decode_s, decode_tokens: the span in which every
        request had its first token, and the tokens of that span.
        """
        requests = list(zip(self.arrivals, self.token_times, strict=True))
        moments = [sorted(set(times)) for times in self.token_times]
        gaps = [later - earlier for times in moments for earlier, later in pairwise(times)]
        at_once = sum(map(len, self.token_times)) / max(1, sum(map(len, moments)))
        tpots = [_mean_gap(times) for times in self.token_times if len(times) > 1]
        sample: dict[str, Any] = {
            "seconds": significant(max(times[-1] for times in self.token_times) - min(a.at for a in self.arrivals), 5),
            "completed": len(requests),
            "output_tokens": sum(len(times) for times in self.token_times),
            "steps": self.steps,
            "rows": self.rows,
            "padding_rows": self.padding_rows,
            "host_us": significant(self.host_s / self.steps * 1e6) if self.steps and self.host_s is not None else None,
            "cached_tokens": self.cached_tokens or None,
            "prompt_tokens": sum(len(arrival.prompt) for arrival in self.arrivals),
            "preemptions": self.preemptions or None,
            "peak_bytes": self.peak_bytes,
            "cache_bytes": self.cache_bytes,
            "cache_waste": None if self.cache_waste is None else significant(self.cache_waste),
            "good": None if goal is None else sum(_meets(goal, arrival, times) for arrival, times in requests),
            "ttft_ms": distribution(1e3 * (times[0] - arrival.at) for arrival, times in requests),
            "tpot_ms": distribution(1e3 * tpot for tpot in tpots),
            "itl_ms": distribution(1e3 * gap for gap in gaps),
            "tokens_at_once": significant(at_once) if at_once > 1 else None,
            "e2e_ms": distribution(1e3 * (times[-1] - arrival.at) for arrival, times in requests),
        }
        sample |= self._decode_alone()
        longest = max(len(arrival.prompt) for arrival in self.arrivals)
        if longest > min(len(arrival.prompt) for arrival in self.arrivals):
            sample["ttft_ms_longest"] = distribution(
                1e3 * (times[0] - arrival.at) for arrival, times in requests if len(arrival.prompt) == longest
            )
        if 1 < len(requests) <= RAW_REQUESTS:
            sample["requests"] = [
                [significant(1e3 * (times[i] - arrival.at)) for i in (0, -1)] for arrival, times in requests
            ]
        return {name: value for name, value in sample.items() if value is not None}

    def _decode_alone(self) -> dict[str, Any]:
        began = max(times[0] for times in self.token_times)
        later = [time for times in self.token_times for time in times if time > began]
        return {"decode_s": significant(max(later) - began, 5), "decode_tokens": len(later)} if later else {}


def _mean_gap(times: Sequence[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def _meets(goal: Goal, arrival: Arrival, times: Sequence[float]) -> bool:
    in_time = times[0] - arrival.at <= goal.ttft
    return in_time and (len(times) < 2 or _mean_gap(times) <= goal.tpot)


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass
class Stopwatch:
    """Wraps an engine's runner and adds up the host's time. Costs about a microsecond per step.

    run_s: inside `run`, which on a GPU only launches. wait_s: inside `get`, waiting for the device.
    """

    runner: Any
    run_s: float = 0.0
    wait_s: float = 0.0

    def run(self, plan: Plan) -> Result:
        start = time.perf_counter()
        result = self.runner.run(plan)
        self.run_s += time.perf_counter() - start
        return _Timed(result, self)


class _Timed:
    def __init__(self, result: Result, watch: Stopwatch) -> None:
        self.rows, self._result, self._watch = result.rows, result, watch

    def get(self) -> Sampled:
        start = time.perf_counter()
        try:
            return self._result.get()
        finally:
            self._watch.wait_s += time.perf_counter() - start


@contextmanager
def stopwatch(engine: Engine) -> Iterator[Stopwatch]:
    watch = Stopwatch(engine.runner)
    engine.runner = watch
    try:
        yield watch
    finally:
        engine.runner = watch.runner


def drive(
    engine: Engine,
    arrivals: Sequence[Arrival],
    device: torch.device,
    after_step: Callable[[], None] = lambda: None,
) -> Run:
    """Run the arrivals through `engine`, submitting each at its time. Returns when the last has ended.

    after_step: called after each step, inside the measured time. Raises ContenderFailed if a request fails.
    """
    audience = _Audience(arrivals, engine)
    due = audience.due
    before = engine.metrics()
    stepping = 0.0
    synchronize(device)
    with stopwatch(engine) as watch:
        start = time.perf_counter()
        while due or engine.has_work:
            now = time.perf_counter() - start
            while due and due[0][0] <= now:
                engine.submit(heappop(due)[2])
            if not engine.has_work:
                time.sleep(max(0.0, due[0][0] - (time.perf_counter() - start)))
                continue
            began = time.perf_counter()
            outputs = engine.step()
            ended = time.perf_counter()
            stepping += ended - began
            audience.hear(outputs, ended - start)
            after_step()
    after = engine.metrics()
    run = Run(
        audience.arrivals,
        audience.token_times,
        steps=after.steps - before.steps,
        rows=after.rows - before.rows,
        padding_rows=after.padding_rows - before.padding_rows,
        cached_tokens=after.cached_tokens - before.cached_tokens,
        preemptions=after.preemptions - before.preemptions,
        # on a GPU the host launches and then waits; on a CPU `run` is the model's work itself
        host_s=stepping - (watch.wait_s if device.type == "cuda" else watch.run_s + watch.wait_s),
    )
    run.check()
    return run


class _Audience:
    """The users: their requests and times, the tokens they received, and the next turns of their conversations.

    due: a heap of (time, index, request) not submitted yet; a conversation's next turn joins when the previous one
    ends.
    """

    def __init__(self, arrivals: Sequence[Arrival], engine: Engine) -> None:
        self.arrivals = list(arrivals)
        self.token_times: list[list[float]] = [[] for _ in arrivals]
        self._times = {str(index): times for index, times in enumerate(self.token_times)}  # by request id
        self.due: list[tuple[float, int, Request]] = []
        self._limits = engine.limits
        self._followers = {a.follows: index for index, a in enumerate(arrivals) if a.follows is not None}
        self._answers: dict[int, list[int]] = {index: [] for index in self._followers}
        for index, arrival in enumerate(arrivals):
            if arrival.follows is None:
                self._will_ask(index)

    def _will_ask(self, index: int) -> None:
        arrival = self.arrivals[index]
        params = SamplingParams(max_tokens=arrival.max_tokens, temperature=arrival.temperature, ignore_eos=True)
        request = Request.create(str(index), arrival.prompt, params, self._limits)
        heappush(self.due, (arrival.at, index, request))

    def hear(self, outputs: Sequence[Output], now: float) -> None:
        """Take a step's outputs. Raises ContenderFailed if one of them is a failure."""
        times, followers = self._times, self._followers
        for output in outputs:  # runs for every token of every stream, and the GPU may have to wait for it
            if output.error is not None:
                raise ContenderFailed(output.error)
            heard = times[output.request_id]
            for _ in output.tokens:
                heard.append(now)
            if followers:
                self._remember(output, now)

    def _remember(self, output: Output, now: float) -> None:
        """Keep a conversation's output, which is part of the next turn's prompt."""
        index = int(output.request_id)
        if index in self._followers:
            self._answers[index] += output.tokens
            if output.finish_reason is not None:
                self._answer(index, now)

    def _answer(self, index: int, now: float) -> None:
        """Queue the next turn: the conversation so far, and its new tokens."""
        follower = self._followers[index]
        arrival = self.arrivals[follower]
        said = (*self.arrivals[index].prompt, *self._answers[index])
        self.arrivals[follower] = replace(arrival, at=now + arrival.at, prompt=said + arrival.prompt)
        self._will_ask(follower)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- repeats -----------------------------------------------------------------------------------------------------------


class Contender(Protocol):
    """Something that can run a workload. Built once, before its warm-up; closed when its cell is done.

    needed_bytes: device memory while it exists. about: settings of its own, known once it is built; "" for none.
    """

    name: str
    needed_bytes: int
    about: str

    def build(self) -> None: ...

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        """Run the arrivals. watch_memory: record memory use at every step, in runs that are not timed."""

    def close(self) -> None: ...


@dataclass
class Trial:
    """A contender on one workload: its samples, or the reason for having none."""

    contender: Contender
    samples: list[dict[str, Any]] = field(default_factory=list)
    failed: str | None = None
    watched: Run | None = None  # the warm-up, with memory recorded
    warm_up_s: float = 0.0


@dataclass(frozen=True)
class Repeats:
    """The number of repeats: `usual`, or `if_slow` if the slowest contender takes more than `slow_s` seconds.

    floor_s: the slowest contender's predicted time; its warm-up's time counts as well. once_s: a contender whose
    warm-up took longer is timed once, so that the others need not wait for its repeats.
    """

    usual: int = 5
    if_slow: int = 3
    slow_s: float = 4.0
    floor_s: float = 0.0
    once_s: float = math.inf

    def wants(self, trial: Trial, repeat: int) -> bool:
        """Whether a contender takes part in a repeat; the first is 0."""
        return repeat == 0 or trial.warm_up_s <= self.once_s

    def count(self, ready: Sequence[Trial]) -> int:
        if not ready:
            return 0
        slowest = max(self.floor_s, *(trial.warm_up_s for trial in ready))
        return self.if_slow if slowest > self.slow_s else self.usual


def compare(
    contenders: Sequence[Contender],
    arrivals: Sequence[Arrival],
    warm_up: Sequence[Arrival],
    repeats: Repeats,
    free_bytes: int,
    *,
    goal: Goal | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Run every contender several times, in turns, so that drift (heat, neighbors) affects all alike.

    Each is built once and warms up with `warm_up`, untimed. Then they take turns: A B C, B C A, C A B. Contenders that
    do not fit into memory together run in blocks and are rebuilt each time, with the two halves of their repeats apart:
    A B C A B C. A contender that fails is left out with its reason.
    done: called after every run, the warm-ups included.
    """
    trials = [Trial(contender) for contender in contenders]
    if sum(contender.needed_bytes for contender in contenders) <= free_bytes:
        with _built(trials, warm_up, done) as ready:
            for repeat in range(repeats.count(ready)):
                turn = repeat % max(1, len(ready))
                for trial in ready[turn:] + ready[:turn]:
                    if repeats.wants(trial, repeat):
                        _measure(trial, arrivals, goal, done)
        return trials
    for first_half in (True, False):
        for trial in trials:
            with _built([trial], warm_up, done) as ready:
                whole = repeats.count(ready)
                half = whole - whole // 2
                for repeat in range(half) if first_half else range(half, whole):
                    if repeats.wants(trial, repeat):
                        _measure(trial, arrivals, goal, done)
    return trials


@contextmanager
def _built(trials: Sequence[Trial], warm_up: Sequence[Arrival], done: Callable[[], None]) -> Iterator[list[Trial]]:
    """The trials whose contender could be built and warmed up, closed again at the end."""
    try:
        for trial in trials:
            if trial.failed is None:
                with _catching(trial):
                    trial.contender.build()
                    start = time.perf_counter()
                    trial.watched = trial.contender.run(warm_up, watch_memory=True)
                    trial.warm_up_s = time.perf_counter() - start
                done()
        yield [trial for trial in trials if trial.failed is None]
    finally:
        for trial in trials:
            trial.contender.close()


def _measure(trial: Trial, arrivals: Sequence[Arrival], goal: Goal | None, done: Callable[[], None]) -> None:
    if trial.failed is None:
        with _catching(trial):
            run = trial.contender.run(arrivals)
            watched = trial.watched
            assert watched is not None, "warmed up before it is measured"
            run.peak_bytes = max((b for b in (run.peak_bytes, watched.peak_bytes) if b is not None), default=None)
            run.cache_bytes, run.cache_waste = watched.cache_bytes, watched.cache_waste
            trial.samples.append(run.sample(goal))
    done()


@contextmanager
def _catching(trial: Trial) -> Iterator[None]:
    """Record any exception as the contender's failure, so that the others' measurements survive."""
    try:
        yield
    except Exception as error:
        trial.failed = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        trial.samples.clear()
