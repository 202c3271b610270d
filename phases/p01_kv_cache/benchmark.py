"""How much does keeping keys and values gain, for which lengths, and how long does a decode step still take?"""

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import cached
from gradus.bench.workloads import single_stream

PROMPTS = (64, 256, 512)


def _answer(output: int) -> Row:
    """Start from a short prompt, so that 1,000 tokens still fit GPT-2's context. A CPU's baseline would take far too
    long for that: there it ends at half."""
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
            quick=tuple(Row(str(output), output, single_stream(16, output)) for output in (4, 40)),
            contenders=("p00", "p01", "transformers"),
            columns=("itl_ms", "itl_ms_p99", "rows", "host_us", "peak_mb"),
            against="p00",
        ),
        Table(
            name="prompt-length",
            title="One request, longer and longer prompts, 32 tokens out",
            axis="prompt tokens",
            rows=tuple(Row(str(prompt), prompt, single_stream(prompt, 32)) for prompt in PROMPTS),
            quick=tuple(Row(str(prompt), prompt, single_stream(prompt, 6)) for prompt in (16, 96)),
            quick_title="One request, longer and longer prompts, 6 tokens out",
            contenders=("p00", "p01", "transformers"),
            metric="e2e_ms",
            columns=("ttft_ms", "itl_ms"),
            against="p00",
        ),
    ),
    profile=("p00", "p01"),
    step="Keeps keys and values, so a token costs one row: {chat/all/p01/rows} rows in all.",
)
