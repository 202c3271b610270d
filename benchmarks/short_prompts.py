"""Measure the gain of replaying short prompts: the time to the first token, and of decodes while prompts arrive.

    PYTHONPATH=src:. python3 benchmarks/short_prompts.py --out benchmarks/short_prompts.json

Both ways run in one engine: passes over short prompts are replayed from CUDA graphs, or launched kernel by kernel. The
time to the first token is that of a request alone in the engine, from `submit` to its token. During decodes, a prompt
arrives every EVERY steps, and each step is timed.
"""

import statistics
import sys
import time

from benchmarks.by_model import Rows, by_model
from gradus import LLM, SamplingParams
from gradus.bench.run.script import ran

MODELS = ("random:smollm2-135m", "random:qwen3-0.6b", "random:llama-3.1-8b")
LENGTHS = (1, 10, 40, 100, 200, 500, 900, 1500, 3000, 6000)
REPEATS, CONTEXT, SEQUENCES = 9, 8192, 64
DECODES, STEPS, EVERY, ARRIVING = 32, 200, 10, 40  # a prompt of ARRIVING tokens arrives every EVERY steps


def main() -> None:
    by_model(__doc__, MODELS, measure)


def measure(model: str) -> Rows:
    """Measure a row for each way. ttft_ms: by the prompt's tokens. sizes: numbers of rows that passes are captured
    for."""
    llm = LLM(
        model, device="cuda", max_sequences=SEQUENCES, context_length=CONTEXT, cache_tokens=SEQUENCES * CONTEXT,
        switch_off=("prefix_cache",),
    )  # fmt: skip
    from gradus.execution.runner import Runner  # needs Triton

    runner = llm.engine.runner
    assert isinstance(runner, Runner)
    attention = runner.attention
    rows, sizes = [], attention.sizes
    for way, captured in (("replayed", sizes), ("launched", ())):
        attention.sizes = captured
        ttft = {length: first_token(llm, length) for length in LENGTHS}
        arrivals(llm)
        times = sorted(arrivals(llm))
        p50, p95 = (1e3 * times[int(share * len(times))] for share in (0.5, 0.95))
        rows.append({"model": model, "way": way, "ttft_ms": ttft, "step_p50_ms": p50, "step_p95_ms": p95})
    return [row | {"sizes": list(sizes)} for row in rows]


def prompt(llm: LLM, length: int, number: int) -> list[int]:
    return [(7 * number + 13 * place) % (llm.limits.vocab_size - 10) + 5 for place in range(length)]


def first_token(llm: LLM, length: int) -> float:
    """Measure the time to the first token in milliseconds, the median of a few."""
    once = SamplingParams(max_tokens=1, ignore_eos=True)
    times = []
    for number in range(2 + REPEATS):
        start = time.perf_counter()
        llm.submit(prompt(llm, length, number), once)
        while llm.has_work:
            llm.step()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:])


def arrivals(llm: LLM) -> list[float]:
    """Measure the seconds of each step of decodes while prompts arrive."""
    for number in range(DECODES):
        llm.submit(prompt(llm, ARRIVING, number), SamplingParams(max_tokens=2 * STEPS, ignore_eos=True))
    for _ in range(EVERY):
        llm.step()
    times = []
    for step in range(STEPS):
        if step % EVERY == 0:
            llm.submit(prompt(llm, ARRIVING, step), SamplingParams(max_tokens=4, ignore_eos=True))
        start = time.perf_counter()
        llm.step()
        times.append(time.perf_counter() - start)
    while llm.has_work:
        llm.step()
    return times


if __name__ == "__main__":
    sys.exit(ran(main))
