"""Loads on one server: once, for several rates or numbers of users, or in search of the highest rate that is served."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from gradus.errors import ConfigError
from gradus.load.answer import UNFINISHED, Answer
from gradus.load.asking.clients import Rules, Run, run
from gradus.load.asking.routes import BACKENDS, Writing, route_at
from gradus.load.asking.target import Target
from gradus.load.jobs.arrivals import at_random, growing, in_bursts
from gradus.load.jobs.job import Job
from gradus.load.jobs.mix import Mix, random_ids
from gradus.load.jobs.traces import read_trace
from gradus.load.measurements import summary
from gradus.load.objective import Objective
from gradus.load.search import Found, Search, highest_rate
from gradus.load.settings import LoadSettings

FIRST_IDS = 30_000  # of a server that does not say how large its vocabulary is: all but toys have these
LATE_S, LATE_SHARE = 0.1, 0.1  # the generator's lateness, p99, from which an open load is none: a share of TTFT's limit
SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One load. rate, users: what was asked for; infinite and None where it was not. answers: without a warm-up's."""

    rate: float
    users: int | None
    jobs: list[Job]
    run: Run
    answers: list[Answer]
    objective: Objective

    @property
    def good(self) -> float:
        """The share of answers that met the objective. Those that an early end cut off are not judged."""
        judged = [one for one in self.answers if not (self.run.stopped and one.error == UNFINISHED)]
        return sum(map(self.objective.met, judged)) / len(judged) if judged else 0.0

    @property
    def late(self) -> bool:
        """Whether the generator could not keep the times of an open load, which makes its numbers wrong."""
        limit = LATE_S if self.objective.ttft is None else max(0.01, LATE_SHARE * self.objective.ttft)
        return self.users is None and self.run.late_s > limit

    def record(self, percentiles: Sequence[float]) -> dict[str, Any]:
        """The numbers for a file of results."""
        asked = {"rate": None if math.isinf(self.rate) else self.rate, "users": self.users}
        ends = {"stopped_early": self.run.stopped, "generator_late": self.late, "good_share": round(self.good, 5)}
        return asked | ends | summary(self.answers, self.objective, percentiles)


@dataclass(frozen=True)
class Trials:
    """Loads on one server, and all that they have in common. pool: client processes, None: this one."""

    target: Target
    writing: Writing
    vocab_size: int
    pool: ProcessPoolExecutor | None = None
    seed: int = 0
    timeout: float = 600.0
    objective: Objective = field(default_factory=Objective)

    def send(self, jobs: list[Job], *, rate: float = math.inf, users: int | None = None, warmup: float = 0.0) -> Trial:
        rules = Rules(limit=users, timeout=self.timeout, patience=self.timeout)
        return self._trial(jobs, rate, rules, warmup)

    def _trial(self, jobs: list[Job], rate: float, rules: Rules, warmup: float) -> Trial:
        done = run(self.target, self.writing, jobs, rules, self.pool)
        return Trial(rate, rules.limit, jobs, done, done.after(warmup), self.objective)

    def probe(self, mix: Mix, rate: float, search: Search, number: int) -> Trial:
        """Send an open load for some seconds; it ends early once too few of its answers can meet the objective.

        number: of the probe, so that no prompt is sent twice; the shared beginnings are the same in all of them.
        """
        count = max(search.requests, math.ceil(rate * search.seconds)) + math.ceil(rate * search.warmup)
        times = at_random(count, rate, Random(f"{self.seed} arrivals {number}"))
        jobs = mix.jobs(times, self.vocab_size, f"{self.seed} {number}", beginnings=str(self.seed))
        counted = sum(time > search.warmup for time in times)
        longest = (self.objective.ttft or 0.0) + mix.output.high * (self.objective.tpot or 0.0)
        patience = self.objective.e2el or (longest if self.objective.tpot else self.timeout)
        rules = Rules(
            timeout=self.timeout, patience=patience, objective=self.objective,
            most_missed=math.floor((1 - search.share) * counted + 1e-9),
        )  # fmt: skip
        return self._trial(jobs, rate, rules, search.warmup)

    def settle(self) -> None:
        """Wait until the server answers a short request at once: it may still be busy with what was cut off."""
        ends, limit = time.monotonic() + SETTLE_S, 0.5 * (self.objective.ttft or 1.0)
        random = Random(f"{self.seed} settle {time.monotonic()}")
        while time.monotonic() < ends:
            job = Job(0.0, random_ids(random, 8, self.vocab_size), 1)
            (answer,) = run(self.target, self.writing, [job], Rules(timeout=SETTLE_S)).answers
            if not answer.error and answer.ttft <= limit:
                return
            time.sleep(0.2)

    def highest(self, mix: Mix, start: float, search: Search, each: Callable[[Trial], None]) -> Found:
        """Find the highest rate at which enough requests meet the objective. each: called after every probe.

        It ends at a rate that the generator cannot send in time: its numbers would be those of another load. Raises
        ConfigError if that is the first.
        """
        probes = iter(range(1_000_000))

        def passes(rate: float) -> bool | None:
            trial = self.probe(mix, rate, search, next(probes))
            each(trial)
            if trial.late:
                return None
            self.settle()
            return not trial.run.stopped and trial.good >= search.share

        found = highest_rate(passes, start, search)
        if found.unsent and not found.passed:
            raise ConfigError(
                f"this machine cannot send {found.unsent:.4g} requests/s in time: give the clients more cores"
            )
        return found


# -- from settings -----------------------------------------------------------------------------------------------------


def opened(
    settings: LoadSettings, target: Target, stats: dict[str, Any] | None, pool: ProcessPoolExecutor | None
) -> Trials:
    """Prepare loads as the settings say. stats: a Gradus server's /stats, None of another. Raises ConfigError."""
    path = settings.endpoint or BACKENDS[settings.backend or ("gradus" if stats else "openai")]
    route = route_at(path)
    model = settings.model or (target.model() if route.needs_model else "")
    vocab = settings.vocab_size or (stats or {}).get("vocab_size") or FIRST_IDS
    writing = Writing(path, model, settings.temperature, not settings.stop_at_eos, settings.text)
    return Trials(target, writing, vocab, pool, settings.seed, settings.request_timeout, settings.objective)


def jobs_of(settings: LoadSettings, vocab_size: int, rate: float, count: int, salt: str = "") -> list[Job]:
    """Draw the jobs of one load. salt: makes other prompts of the same seed."""
    seed = f"{settings.seed}{salt}"
    if settings.trace:
        most = count if settings.requests != LoadSettings.requests else None
        return read_trace(Path(settings.trace), vocab_size, most=most, speed=settings.trace_speed, seed=seed)
    random = Random(f"{seed} arrivals")
    if settings.ramp_up_strategy:
        start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
        times = growing(count, start, end, settings.ramp_up_strategy, random, settings.burstiness)  # type: ignore[arg-type]
    elif settings.burst_size:
        times = in_bursts(count, settings.burst_size, settings.burst_every)
    else:
        times = at_random(count, rate, random, settings.burstiness)
    mix = settings.draws()
    jobs = mix.jobs(times, vocab_size, seed, beginnings=str(settings.seed))
    if settings.mixed:  # answer i of n has i / n of the tokens, rounded up
        jobs = [replace(job, output=-(-mix.output.high * n // count)) for n, job in enumerate(jobs, start=1)]
    if settings.long:
        prompt = random_ids(Random(f"{seed} long"), settings.long, vocab_size)
        jobs.append(Job(0.0, prompt, mix.output.high, late=True))
    return jobs


def loads(settings: LoadSettings, trials: Trials) -> Iterator[Trial]:
    """Send one load after the other, for each rate or number of users."""
    for rate in settings.rates:
        for users in settings.users:
            several = len(settings.rates) * len(settings.users) > 1
            count = max(settings.requests, 4 * users) if several and users else settings.requests
            jobs = jobs_of(settings, trials.vocab_size, rate, count, f" {rate:g} {users}" if several else "")
            yield trials.send(jobs, rate=rate, users=users, warmup=settings.warmup)
