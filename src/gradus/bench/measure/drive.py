"""A workload driven through an engine, every token timed on the host's clock; and repeats, one contender after another.

The driver is open-loop: a request is submitted when its time has come, however busy the engine is, and its latency
counts from that time, not from when the driver got round to it. (A driver that waits for the engine before it sends
the next request measures a kinder world: coordinated omission.) Tokens are counted when the host has them, which is
when they could be sent to a user; a step's only wait for the device is in its commit, so no time is taken too early.
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

RAW_REQUESTS = 8  # a sample keeps each request's times up to this many; beyond, the distributions must do


class ContenderFailed(RuntimeError):
    """A contender could not do the work; its text becomes the reason in the report."""


def check_completions(completions: Sequence[Completion], params: Sequence[SamplingParams]) -> None:
    """Raises ContenderFailed unless every request got all the tokens and log-probabilities that it asked for."""
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

    arrivals: as they really came; a conversation's next turn has its whole prompt, and the time that it came at.
    rows, padding_rows: what the model computed, and what of it no sequence asked for; None where it is not known.
    cached_tokens: positions of prompts that were found in a cache. preemptions: how often a sequence had to give way.
    host_s: time that steps took beside the model's work (see `Stopwatch`). peak_bytes: the contender's own memory.
    cache_bytes: the most that sequences held of the cache. cache_waste: percent of what they held that stored nothing.
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
        """Raises ContenderFailed unless every request got exactly the tokens that it asked for."""
        for index, (arrival, times) in enumerate(zip(self.arrivals, self.token_times, strict=True)):
            if len(times) != arrival.max_tokens:
                raise ContenderFailed(f"request {index} got {len(times)} tokens instead of {arrival.max_tokens}")

    def sample(self, goal: Goal | None = None) -> dict[str, Any]:
        """What is kept of it, as JSON. Latencies count from a request's arrival.

        ttft: until the first token. itl: every gap between two times at which tokens of a request came, and
        tokens_at_once how many came at a time on average, where it was more than one. tpot: a request's mean time per
        token after the first. e2e: until the last token. seconds: from the first arrival to the last token. decode_s,
        decode_tokens: the time when every request had its first token, and the tokens that came then.
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
    """Stands before an engine's runner and adds up where the host's time goes. Costs about a microsecond per step.

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
    """Run the arrivals through `engine`, submitting each when its time has come. Returns when the last has ended.

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
    """The users: when each asks what, what came back when, and what is asked next because of it.

    due: (time, index, request) of users that have not asked yet, a heap; a conversation's next turn comes into it when
    the one before has ended.
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
        """Take what a step gave them. Raises ContenderFailed if it failed one."""
        times, followers = self._times, self._followers
        for output in outputs:  # of every token of every stream: what this costs, the GPU may have to wait for
            if output.error is not None:
                raise ContenderFailed(output.error)
            heard = times[output.request_id]
            for _ in output.tokens:
                heard.append(now)
            if followers:
                self._remember(output, now)

    def _remember(self, output: Output, now: float) -> None:
        """In a conversation: what was said is a part of the next turn's prompt."""
        index = int(output.request_id)
        if index in self._followers:
            self._answers[index] += output.tokens
            if output.finish_reason is not None:
                self._answer(index, now)

    def _answer(self, index: int, now: float) -> None:
        """What was said so far, and then the next turn."""
        follower = self._followers[index]
        arrival = self.arrivals[follower]
        said = (*self.arrivals[index].prompt, *self._answers[index])
        self.arrivals[follower] = replace(arrival, at=now + arrival.at, prompt=said + arrival.prompt)
        self._will_ask(follower)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- repeats -----------------------------------------------------------------------------------------------------------


class Contender(Protocol):
    """Something that can run a workload. Built once, before its warm-up; closed when its cell is done.

    needed_bytes: of the device's memory, while it is built. about: what of its settings is its own, known once it is
    built; "" where there is nothing to tell.
    """

    name: str
    needed_bytes: int
    about: str

    def build(self) -> None: ...

    def run(self, arrivals: Sequence[Arrival], *, watch_memory: bool = False) -> Run:
        """Run the arrivals. watch_memory: look at every step how much is in use; for runs that are not timed."""

    def close(self) -> None: ...


@dataclass
class Trial:
    """A contender on one workload: its samples, or why there are none."""

    contender: Contender
    samples: list[dict[str, Any]] = field(default_factory=list)
    failed: str | None = None
    watched: Run | None = None  # the warm-up, in which memory was looked at
    warm_up_s: float = 0.0


@dataclass(frozen=True)
class Repeats:
    """How often a cell is run: `usual`, or `if_slow` where its slowest contender takes more than `slow_s` seconds.

    floor_s: what the slowest takes at least; beside it counts how long its warm-up took. once_s: a contender whose
    warm-up took longer is run once, so that the others' repeats need not wait for its.
    """

    usual: int = 5
    if_slow: int = 3
    slow_s: float = 4.0
    floor_s: float = 0.0
    once_s: float = math.inf

    def wants(self, trial: Trial, repeat: int) -> bool:
        """Whether a contender takes part in a repeat, the first being 0."""
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
    """Run every contender several times, so that whatever drifts (heat, neighbors) drifts for all alike.

    Each is built once, warms up with `warm_up` outside the clock, and then they take turns: A B C, B C A, C A B. Where
    they do not fit into memory side by side, they run in blocks, and the first half of each one's repeats is apart
    from the second half: A B C A B C, rebuilt each time. A contender that fails is left out with its reason.
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
    """A contender that fails must not take the others' measurements with it, whatever it is that it raises."""
    try:
        yield
    except Exception as error:
        trial.failed = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        trial.samples.clear()
