"""Workloads: the same arrivals, lengths and token ids for every contender.

A workload is a list of jobs: when each arrives, how long its prompt is, how many tokens it asks for. Lengths need no
model; token ids are drawn once the vocabulary is known. Both follow from the seed alone, on every machine, because only
`Random.random` is used: the one method whose sequence Python promises to keep. No torch here.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gradus.errors import ConfigError

SEED = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One request before its tokens are drawn. at: seconds after the start. Lengths in tokens.

    shared: how many of the prompt's first tokens are the same for all jobs of the same `group`.
    follows: the index of the previous turn's job. The prompt is then that job's whole sequence and `prompt` new tokens,
    and it arrives `at` seconds after that job ends.
    """

    at: float
    prompt: int
    output: int
    shared: int = 0
    group: int = 0
    follows: int | None = None

    def cut(self, prompt: int, output: int) -> "Job":
        """Limit the tokens in and out."""
        shared = min(self.shared, prompt - 1)
        return replace(self, prompt=min(self.prompt, prompt), output=min(self.output, output), shared=shared)

    def facts(self) -> list[Any]:
        """The fields that identify the job, without those that most jobs leave at their default."""
        rare = [self.group, self.follows] if self.group or self.follows is not None else []
        return [round(self.at, 9), self.prompt, self.output, self.shared, *rare]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: `prompt` token ids arrive `at` seconds after the start and want exactly `max_tokens` tokens.

    The end-of-sequence token is ignored, so the work does not depend on the model's output. temperature: 0 is greedy.
    follows: as in Job; `prompt` then holds only the tokens after that arrival's whole sequence.
    """

    at: float
    prompt: tuple[int, ...]
    max_tokens: int
    follows: int | None = None
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival. what: one phrase, for reports."""

    name: str
    what: str
    jobs: tuple[Job, ...]
    seed: int = SEED

    @property
    def whole(self) -> tuple[Job, ...]:
        """The jobs with their full prompt lengths, earlier turns included."""
        whole: list[Job] = []
        for job in self.jobs:
            before = 0 if job.follows is None else whole[job.follows].prompt + whole[job.follows].output
            whole.append(replace(job, prompt=before + job.prompt))
        return tuple(whole)

    @property
    def prompt_tokens(self) -> int:
        return sum(job.prompt for job in self.whole)

    @property
    def output_tokens(self) -> int:
        return sum(job.output for job in self.jobs)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(job.prompt + job.output for job in self.whole)

    @property
    def last_arrival(self) -> float:
        return max(job.at for job in self.jobs)

    def arrivals(self, vocab_size: int, context_length: int | None = None) -> tuple[Arrival, ...]:
        """Draw the requests: token ids, uniformly from the whole vocabulary.

        Raises ConfigError if a sequence would be longer than `context_length`.
        """
        if context_length is not None and self.longest > context_length:
            raise ConfigError(
                f"workload {self.name!r} has sequences of {self.longest} tokens, the context is {context_length}"
            )
        prefixes = self._prefixes(vocab_size)
        ids = Random(f"{self.seed} ids")
        return tuple(
            Arrival(
                job.at,
                prefixes[job.group][: job.shared] + _draw(ids, job.prompt - job.shared, vocab_size),
                job.output,
                job.follows,
            )
            for job in self.jobs
        )

    def _prefixes(self, vocab_size: int) -> list[tuple[int, ...]]:
        """Draw the shared beginning of each group."""
        common = Random(f"{self.seed} shared")
        lengths = [
            max((job.shared for job in self.jobs if job.group == group), default=0)
            for group in range(1 + max((job.group for job in self.jobs), default=0))
        ]
        return [_draw(common, length, vocab_size) for length in lengths]

    def shrunk(self, jobs: int, prompt: int, output: int) -> "Workload":
        """The first few jobs, cut to these lengths, for warm-up or a quick look."""
        return replace(self, jobs=tuple(job.cut(prompt, output) for job in self.jobs[:jobs]))

    def within(self, seconds: float) -> "Workload":
        """The same jobs, arriving faster if necessary, so that the last arrives within `seconds`."""
        pace = min(1.0, seconds / self.last_arrival) if self.last_arrival else 1.0
        return replace(self, jobs=tuple(replace(job, at=job.at * pace) for job in self.jobs))

    def record(self) -> dict[str, Any]:
        """Describe the workload for results.json."""
        return {
            "what": self.what,
            "digest": self.digest(),
            "requests": len(self.jobs),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "longest": self.longest,
        }

    def digest(self) -> str:
        """A hash of the whole workload; equal digests mean equal work."""
        jobs = [job.facts() for job in self.jobs]
        return hashlib.sha256(json.dumps([self.seed, jobs]).encode()).hexdigest()[:16]


Range = tuple[int, int]


# -- the matrix --------------------------------------------------------------------------------------------------------


def single_stream(prompt: int, output: int, count: int = 1, seed: int = SEED) -> Workload:
    """One user alone. With count > 1, requests queue up and run one by one where an engine has a batch of one."""
    requests = "one request" if count == 1 else f"{count} requests in a row"
    return Workload(
        "single stream",
        f"{requests}, {prompt} tokens in, {output} out",
        tuple(Job(0.0, prompt, output) for _ in range(count)),
        seed,
    )


def burst(count: int, prompt: int | Range, output: int | Range, seed: int = SEED) -> Workload:
    """Requests that arrive at once. Lengths are fixed, or uniform between two bounds, both included."""
    draw = Random(f"{seed} lengths")
    jobs = tuple(Job(0.0, _length(draw, prompt), _length(draw, output)) for _ in range(count))
    return Workload("burst", f"{count} requests at once, {_said(prompt)} tokens in, {_said(output)} out", jobs, seed)


def poisson(count: int, rate: float, prompt: int | Range, output: int | Range, seed: int = SEED) -> Workload:
    """Independent users: `rate` requests per second on average, the gaps between them exponential."""
    draw, clock = Random(f"{seed} lengths"), Random(f"{seed} arrivals")
    jobs = tuple(Job(at, _length(draw, prompt), _length(draw, output)) for at in _poisson_times(clock, count, rate))
    what = f"{count} requests at {rate:g}/s (Poisson), {_said(prompt)} tokens in, {_said(output)} out"
    return Workload("Poisson", what, jobs, seed)


def shared_prefix(
    count: int,
    rate: float,
    prefix: int,
    prompt: int | Range,
    output: int | Range,
    seed: int = SEED,
    lead: float = 0.0,
) -> Workload:
    """A system prompt: all requests begin with the same `prefix` tokens; `prompt` counts what follows.

    rate: infinity means all at once. lead: seconds by which the first request precedes the others.
    """
    draw, clock = Random(f"{seed} lengths"), Random(f"{seed} arrivals")
    jobs = tuple(
        Job(at + (lead if index else 0.0), prefix + _length(draw, prompt), _length(draw, output), shared=prefix)
        for index, at in enumerate(_poisson_times(clock, count, rate))
    )
    when = "at once" if math.isinf(rate) else f"at {rate:g}/s"
    after = f", {lead:g} s after the first" if lead else ""
    what = f"{count} requests {when}{after} sharing {prefix} tokens, {_said(prompt)} more in, {_said(output)} out"
    return Workload("shared prefix", what, jobs, seed)


def long_prompts(
    steady: int, steady_output: int, injected: int, prompt: int, every: float, output: int = 16, seed: int = SEED
) -> Workload:
    """Steady decodes interrupted regularly by a long prompt: how late do the others' tokens get?"""
    decodes = [Job(0.0, 32, steady_output) for _ in range(steady)]
    intruders = [Job((i + 1) * every, prompt, output) for i in range(injected)]
    when = f"one prompt of {prompt} after" if injected == 1 else f"{injected} prompts of {prompt}, one every"
    what = f"{steady} steady decodes of {steady_output} tokens, {when} {every:g} s"
    return Workload("long prompts", what, tuple(decodes + intruders), seed)


def few_shot(groups: int, each: int, examples: int, question: int, output: int, seed: int = SEED) -> Workload:
    """Several tasks, each with its own worked examples before every question; tasks take turns."""
    jobs = tuple(
        Job(0.0, examples + question, output, shared=examples, group=index % groups) for index in range(groups * each)
    )
    what = f"{groups * each} requests at once, {groups} tasks of {examples} tokens, {question} more in, {output} out"
    return Workload("few-shot", what, jobs, seed)


def conversations(
    count: int, turns: int, first: int, question: int, answer: int, pause: float, system: int = 0, seed: int = SEED
) -> Workload:
    """Chats: each turn resends the conversation so far, which begins with `system` shared tokens."""
    jobs: list[Job] = [Job(0.0, system + first, answer, shared=system) for _ in range(count)]
    for turn in range(1, turns):
        jobs += [Job(pause, question, answer, follows=(turn - 1) * count + chat) for chat in range(count)]
    what = (
        f"{count} conversations of {turns} turns, {system + first} tokens in at first, {question} more each turn, "
        f"{answer} out, {pause:g} s between turns"
    )
    return Workload("conversations", what, tuple(jobs), seed)


def conversational(count: int, seed: int = SEED, prompt: int = 202, output: int = 179, longest: int = 1024) -> Workload:
    """Requests with the lengths of real chats, all at once: log-normal with the means of ShareGPT's conversations as
    serving benchmarks sample them (202 tokens in, 179 out), and a standard deviation of the logarithm of 1."""
    draw = Random(f"{seed} lengths")

    def length(mean: int) -> int:
        return max(1, min(longest // 2, round(math.exp(math.log(mean) - 0.5 + _normal(draw)))))

    jobs = tuple(Job(0.0, length(prompt), length(output)) for _ in range(count))
    lengths = f"log-normal lengths (means {prompt} in, {output} out, each at most {longest // 2})"
    what = f"{count} requests at once, {lengths}"
    return Workload("conversational", what, jobs, seed)


def memory_pressure(pool_tokens: int, demand: float, prompt: int, output: int, seed: int = SEED) -> Workload:
    """Requests that together need `demand` times a cache of `pool_tokens` positions (1.1: a tenth too much)."""
    count = math.ceil(pool_tokens * demand / (prompt + output))
    what = f"{count} requests at once, {demand:.0%} of a cache of {pool_tokens} positions, {prompt} in, {output} out"
    return Workload("memory pressure", what, tuple(Job(0.0, prompt, output) for _ in range(count)), seed)


# -- runs that others have published -----------------------------------------------------------------------------------


def mixed_poisson(count: int, rate: float, long_share: float, seed: int = SEED) -> Workload:
    """Short prompts, U[32, 128], and long ones, U[512, 1024]: `long_share` of them; 64 tokens out."""
    draw, clock = Random(f"{seed} lengths"), Random(f"{seed} arrivals")
    long = round(count * long_share)
    # evenly spread over the run, so that the share holds in any part of it
    is_long = [(i + 1) * long // count > i * long // count for i in range(count)]
    jobs = tuple(
        Job(at, _length(draw, (512, 1024) if heavy else (32, 128)), 64)
        for at, heavy in zip(_poisson_times(clock, count, rate), is_long, strict=True)
    )
    return Workload(
        "long and short", f"{count} requests at {rate:g}/s, {long_share:.0%} long prompts, 64 out", jobs, seed
    )


PUBLISHED: dict[str, Callable[[], Workload]] = {
    "10 sequential": lambda: single_stream(128, 64, count=10),
    "32 at 4/s": lambda: poisson(32, 4.0, (32, 256), 64),
    "burst of 48": lambda: burst(48, (32, 256), 64),
    "48 at 6/s, 75 % long": lambda: mixed_poisson(48, 6.0, 0.75),
    "48 at 8/s, shared prefix": lambda: shared_prefix(48, 8.0, 1024, (32, 128), 64),
}


# -- what every phase runs ---------------------------------------------------------------------------------------------


def chat_traffic(
    count: int,
    rate: float,
    system: int,
    question: Range,
    answer: Range,
    long: int,
    pasted: int,
    summary: int,
    lead: float,
    seed: int = SEED,
) -> Workload:
    """A chat server's traffic: random arrivals with one system prompt. Some paste a document.

    All prompts begin with the same `system` tokens. `long` of the `count` requests, evenly spread, continue with
    `pasted` tokens and ask for `summary`; the others have a `question` and an `answer` of mixed lengths. The first
    arrives `lead` seconds before the others, so the system prompt is cached by then.
    """
    draw, clock = Random(f"{seed} lengths"), Random(f"{seed} arrivals")
    jobs = []
    for index, at in enumerate(_poisson_times(clock, count, rate)):
        asked, told = _length(draw, question), _length(draw, answer)
        if index % (count // long) == count // (2 * long):
            asked, told = pasted, summary
        jobs.append(Job(at + (lead if index else 0.0), system + asked, told, shared=system))
    what = (
        f"{count} requests at {rate:g}/s (Poisson) behind a system prompt of {system} tokens: "
        f"{_said(question)} more in, {_said(answer)} out, but for {long} that paste {pasted} and want {summary}"
    )
    return Workload("chat traffic", what, tuple(jobs), seed)


def ladder(device: str) -> Workload:
    """The one workload that every phase runs, baseline included, chosen so that every phase's idea matters.

    device: "cuda" or "cpu". Requests arrive faster than any phase can serve them; otherwise the arrivals would set the
    rate. The baseline, which computes the whole sequence for each token, has to finish in about a minute.
    """
    if device == "cuda":
        return chat_traffic(48, 256.0, 1024, (32, 256), (16, 64), long=4, pasted=6000, summary=16, lead=0.1)
    return chat_traffic(16, 32.0, 128, (8, 32), (8, 32), long=2, pasted=400, summary=8, lead=0.2)


SIXTEEN_LENGTHS: dict[str, Range] = {"cuda": (32, 256), "cpu": (16, 64)}


def sixteen(device: str) -> Workload:
    """16 requests at once, of mixed lengths: nothing shared, long, late or short of memory. device: as in `ladder`."""
    lengths = SIXTEEN_LENGTHS[device]
    return replace(burst(16, lengths, lengths), name="sixteen")


# -- how it is drawn ---------------------------------------------------------------------------------------------------


def _draw(random: Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(int(random.random() * vocab_size) for _ in range(count))


def _length(random: Random, bounds: int | Range) -> int:
    if isinstance(bounds, int):
        return bounds
    low, high = bounds
    return low + int(random.random() * (high - low + 1))


def _normal(random: Random) -> float:
    """A standard normal number (Box and Muller 1958)."""
    return math.sqrt(-2 * math.log(1.0 - random.random())) * math.cos(2 * math.pi * random.random())


def _poisson_times(random: Random, count: int, rate: float) -> Sequence[float]:
    """Arrival times: the first at 0, then one after each exponential gap."""
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now -= math.log(1.0 - random.random()) / rate
    return times


def _said(bounds: int | Range) -> str:
    return str(bounds) if isinstance(bounds, int) else f"{bounds[0]} to {bounds[1]}"
