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

from benchmarks.by_model import Rows, by_model
from gradus import LLM, SamplingParams, SchedulingParams
from gradus.bench.run.script import ran
from gradus.server.engine.loop import EngineLoop
from gradus.server.engine.messages import Report

MODELS = ("random:gemma3-1b", "random:llama-3.2-1b")
REQUESTS, PROMPT, ANSWER = 256, 64, 128
EARLY, LATE = slice(1, 4), slice(14, 20)  # rounds 2 to 4, and 15 to 20
ROUNDS, TIMED_ROUNDS = 20, 31  # the second: a million tokens
CYCLES, EACH = 4, 4  # rounds with free pages and without, in a cycle
CACHE_TOKENS = 262_144


def main() -> None:
    by_model(__doc__, MODELS, measure)


def measure(model: str) -> Rows:
    llm = LLM(model, device="cuda", max_sequences=REQUESTS, context_length=PROMPT + ANSWER, cache_tokens=CACHE_TOKENS)
    rates = [rate(llm, number) for number in range(ROUNDS)]
    early, late = (statistics.median(rates[part]) for part in (EARLY, LATE))
    numbers = itertools.count(ROUNDS)
    fresh, full = cycles(llm, numbers)
    row = {
        "model": model,
        "tok_s": [round(each) for each in rates],
        "late_over_early": round(late / early, 4),
        "fresh_tok_s": [round(each) for each in fresh],
        "full_tok_s": [round(each) for each in full],
        "full_over_fresh": round(statistics.median(full) / statistics.median(fresh), 4),
        "evictions": llm.metrics().cache.evictions,
        "pages": llm.metrics().cache.pages,
    }
    for way, step in (("llm", through_llm(llm)), ("server", through_the_servers_loop(llm))):
        collections, times = gc.get_stats()[2]["collections"], []
        for number in itertools.islice(numbers, TIMED_ROUNDS):
            times += decode_steps(llm, step, number)
        row[way] = spread(times) | {"full_collections": gc.get_stats()[2]["collections"] - collections}
    return [row]


def cycles(llm: LLM, numbers: Iterator[int]) -> tuple[list[float], list[float]]:
    """Measure the rates of rounds that find free pages, and of rounds that find none."""
    cache = llm.engine.scheduler.cache
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


def through_llm(llm: LLM) -> Callable[[], int]:
    """Return a function that takes a step, makes its deltas, and returns the number of sequences that advanced."""
    return lambda: len(llm.step())


def through_the_servers_loop(llm: LLM) -> Callable[[], int]:
    """Return a function that takes a turn of the server's loop and returns the number of sequences that advanced."""
    reports: list[Report] = []
    loop = EngineLoop(llm.core, queue.SimpleQueue(), reports.append)

    def turn() -> int:
        loop._turn()
        return len(reports.pop().outputs)

    return turn


def decode_steps(llm: LLM, step: Callable[[], int], number: int) -> list[float]:
    """Measure the seconds of each step in which all sequences decode, without the first and the last ones."""
    params, limit = SamplingParams(max_tokens=ANSWER, ignore_eos=True), SchedulingParams(timeout=300.0)
    for prompt in prompts(llm, number):
        llm.submit(prompt, params, scheduling=limit)
    steps = []
    while llm.core.has_work:
        start = time.perf_counter()
        outputs = step()
        steps.append((outputs, time.perf_counter() - start))
    for request in llm.front_end.open_requests:  # their reports were only counted
        llm.front_end.close(request)
    return [seconds for outputs, seconds in steps if outputs == REQUESTS][2:-2]


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
