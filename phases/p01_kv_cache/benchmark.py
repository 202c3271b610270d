"""What does keeping keys and values bring, for which lengths, and what is left of a decode step?"""

from gradus.bench.declaration import Benchmark, Row, Table
from gradus.bench.prediction import cached
from gradus.bench.workloads import single_stream

PROMPTS = (64, 256, 512)


def _answer(output: int) -> Row:
    """From a short prompt, so that 1,000 tokens still fit GPT-2's context. A CPU's baseline would take far too long for
    so many: there it ends at half."""
    workload = single_stream(16, output)
    return Row(str(output), output, {"cuda": workload, **({"cpu": workload} if output <= 500 else {})})


BENCHMARK = Benchmark(
    question="One request alone: what does the cache bring as the answer, or the prompt, grows longer?",
    prediction=(
        "With the cache a token costs one row and one reading of the weights, whatever the length; without it, all "
        "rows so far. So the gain grows with the length, and it shows in the time between tokens, hardly in the time "
        "to the first: the prompt is computed once either way. On a processor that is quick at arithmetic and slow at "
        "launching, many rows cost as little as one, and the gain comes late."
    ),
    policy=cached,
    tables=(
        Table(
            name="output-length",
            title="One request, longer and longer answers",
            axis="tokens generated",
            rows=tuple(_answer(output) for output in (200, 500, 1000)),
            contenders=("p00", "p01", "transformers"),
            columns=("itl_ms", "itl_ms_p99", "rows", "host_us", "peak_mb"),
            against="p00",
        ),
        Table(
            name="prompt-length",
            title="One request, longer and longer prompts, 32 tokens out",
            axis="prompt tokens",
            rows=tuple(Row(str(prompt), prompt, single_stream(prompt, 32)) for prompt in PROMPTS),
            contenders=("p00", "p01", "transformers"),
            metric="e2e_ms",
            columns=("ttft_ms", "itl_ms"),
            against="p00",
        ),
    ),
    profile=("p00", "p01"),
)
