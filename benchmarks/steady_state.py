"""Measure a server that has been up for an hour: rounds of requests, long after the pool of pages has filled.

    PYTHONPATH=src:. python3 benchmarks/steady_state.py --out benchmarks/steady_state.json

With the prefix cache on, every page ends up idle in the index, and each page that a sequence takes must be evicted
first. Each round is a crowd of requests with new prompts. The first rounds find free pages, the last ones do not; a
row compares their rates. Hosts drift, so cycles follow in which the cache is emptied: rounds with free pages
next to rounds without. Steps in which every sequence decodes are timed one by one, long after that: through `LLM`, and
through the server's loop, where every request has a timeout. A garbage collection that searches the whole cache
would show as a step that takes many times the median.
"""

import gc
import itertools
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.by_model import Rows, by_model
from gradus import LLM, SamplingParams, SchedulingParams
from gradus.bench.run.script import ran
from gradus.cache.paged import PagedCache
from gradus.engine.request import Request
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Command, EngineMessage, Report, Submit, unpacked

MODELS = ("random:gemma3-1b", "random:llama-3.2-1b")
REQUESTS, PROMPT, ANSWER = 256, 64, 128
EARLY, LATE = slice(1, 4), slice(14, 20)  # rounds 2 to 4, and 15 to 20
ROUNDS, TIMED_ROUNDS = 20, 31  # the second: a million tokens
CYCLES, EACH = 4, 4  # rounds with free pages and without, in a cycle
CACHE_TOKENS = 262_144
PARAMS, LIMIT = SamplingParams(max_tokens=ANSWER, ignore_eos=True), SchedulingParams(timeout=300.0)


def main() -> None:
    by_model(__doc__, MODELS, measure)


def measure(model: str) -> Rows:
    llm = LLM(model, device="cuda", max_sequences=REQUESTS, context_length=PROMPT + ANSWER, cache_tokens=CACHE_TOKENS)
    rates = [rate(llm, number) for number in range(ROUNDS)]
    early, late = (statistics.median(rates[part]) for part in (EARLY, LATE))
    numbers = itertools.count(ROUNDS)
    fresh, full = cycles(llm, numbers)
    usage = llm.metrics().cache
    assert usage is not None
    row: dict[str, Any] = {
        "model": model,
        "tok_s": [round(each) for each in rates],
        "late_over_early": round(late / early, 4),
        "fresh_tok_s": [round(each) for each in fresh],
        "full_tok_s": [round(each) for each in full],
        "full_over_fresh": round(statistics.median(full) / statistics.median(fresh), 4),
        "evictions": usage.evictions,
        "pages": usage.pages,
    }
    for name, way in (("llm", through_llm(llm)), ("server", through_the_servers_loop(llm))):
        collections, times = gc.get_stats()[2]["collections"], list[float]()
        for number in itertools.islice(numbers, TIMED_ROUNDS):
            times += decode_steps(llm, way, number)
        row[name] = spread(times) | {"full_collections": gc.get_stats()[2]["collections"] - collections}
    return [row]


def cycles(llm: LLM, numbers: Iterator[int]) -> tuple[list[float], list[float]]:
    """Measure the rates of rounds that find free pages, and of rounds that find none."""
    cache = llm.engine.scheduler.cache
    assert isinstance(cache, PagedCache)
    fresh, full = [], []
    for _ in range(CYCLES):
        cache.forget()
        fresh += [rate(llm, number) for number in itertools.islice(numbers, EACH)]
        evicted = cache.evictions
        while cache.evictions == evicted:
            rate(llm, next(numbers))
        full += [rate(llm, number) for number in itertools.islice(numbers, EACH)]
    return fresh, full


def prompts(llm: LLM, number: int) -> list[list[int]]:
    """Make a round's prompts, which share no beginning with another round's."""
    vocabulary = llm.limits.vocab_size - 10
    same = [5 + 13 * place % vocabulary for place in range(PROMPT - 1)]
    return [[5 + (number * REQUESTS + each) % vocabulary, *same] for each in range(REQUESTS)]


def rate(llm: LLM, number: int) -> float:
    """Run a round. Returns its tokens per second."""
    asked = prompts(llm, number)
    start = time.perf_counter()
    llm.generate(asked, SamplingParams(max_tokens=ANSWER, ignore_eos=True))
    return REQUESTS * ANSWER / (time.perf_counter() - start)


class Way(NamedTuple):
    """A way to run requests. submit: queues a prompt. step: takes a step, makes what its readers get, and returns the
    number of sequences that advanced."""

    submit: Callable[[list[int]], object]
    step: Callable[[], int]


def through_llm(llm: LLM) -> Way:
    return Way(lambda prompt: llm.submit(prompt, PARAMS, scheduling=LIMIT), lambda: len(llm.step()))


def through_the_servers_loop(llm: LLM) -> Way:
    """Return the way of requests that the front end sends: a step is a turn of the server's loop."""
    reports, commands, numbers = list[EngineMessage](), queue.SimpleQueue[Command](), itertools.count(1)
    loop = EngineLoop(llm.core, commands, reports.append)

    def submit(prompt: list[int]) -> None:
        number = next(numbers)
        commands.put(Submit.of(number, Request.create(f"served {number}", prompt, PARAMS, llm.limits, LIMIT)))

    def turn() -> int:
        loop._turn()
        report = reports.pop()
        assert isinstance(report, Report)
        return len(unpacked(report.handles)) + len(report.others)

    return Way(submit, turn)


def decode_steps(llm: LLM, way: Way, number: int) -> list[float]:
    """Measure the seconds of each step in which all sequences decode, without the first and the last ones."""
    for prompt in prompts(llm, number):
        way.submit(prompt)
    steps = []
    while not steps or llm.core.has_work:
        start = time.perf_counter()
        advanced = way.step()
        steps.append((advanced, time.perf_counter() - start))
    return [seconds for advanced, seconds in steps if advanced == REQUESTS][2:-2]


def spread(times: list[float]) -> dict[str, float]:
    """Summarize times in milliseconds."""
    times = sorted(times)
    median = times[len(times) // 2]
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: round(1e3 * times[int(share * len(times))], 4) for name, share in at.items()}
    more = {"max": round(1e3 * times[-1], 4), "max_over_p50": round(times[-1] / median, 3), "steps": len(times)}
    return found | more


if __name__ == "__main__":
    sys.exit(ran(main))
