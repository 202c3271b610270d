"""How much does keeping keys and values gain, for which lengths, and how long does a decode step still take?"""

from gradus.bench.declare.declaration import Account, Benchmark, Row, Table
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
    accounts={
        "h200": Account(
            explains=(
                "In float32 the gain grows with the answer, as predicted: {output-length/200/p01/speedup}, "
                "{output-length/500/p01/speedup} and {output-length/1000/p01/speedup} times. It is far below what "
                "counting rows promises ({output-length/1000/p00/rows} against {output-length/1000/p01/rows}), because "
                "neither engine is held up by rows. A decode step with the cache takes {profile/p01/step_ms} ms, in "
                "which its {profile/p01/kernels} kernels run for {profile/p01/device_ms}: the GPU is idle for "
                "{profile/p01/idle_percent} % of the step and waits for Python to launch the next one. One tiny "
                "operation costs the host {rates/launch_us} µs before it does anything. The baseline launches "
                "{profile/p00/kernels} kernels and pays the same toll; its extra rows show only where they take longer "
                "than the launches, and then they show fully: {profile/p00/device_ms} of {profile/p00/step_ms} ms. "
                "Others who built the same two steps on an earlier GPU saw the same: hardly any gain for short "
                "answers, and more than twice for long ones. The prompt's length tells the same story: with the cache "
                "the latency does not depend on it ({prompt-length/64/p01/e2e_ms} and {prompt-length/512/p01/e2e_ms} "
                "ms), without it does ({prompt-length/64/p00/e2e_ms} and {prompt-length/512/p00/e2e_ms})."
            ),
            loses=(
                "In bfloat16, outright: {random:gpt2-124m, bfloat16: output-length/200/p01/speedup} and "
                "{random:gpt2-124m, bfloat16: output-length/1000/p01/speedup} times the baseline. The matrix units do "
                "the baseline's extra rows in the shadow of its launches, and the cache adds launches of its own: the "
                "copies into it. ({random:gpt2-124m, bfloat16: profile/p01/kernels} kernels against "
                "{random:gpt2-124m, bfloat16: profile/p00/kernels}, and the GPU idle for "
                "{random:gpt2-124m, bfloat16: profile/p01/idle_percent} % of the step.) A cache saves work, and here "
                "work is not what is scarce. And it is {output-length/1000/p01/times_floor} times slower than the "
                "bytes it reads would allow; what it takes to close that gap are larger batches, then fewer launches."
            ),
        ),
        "cpu": Account(
            explains=(
                "Here the gain is what counting rows promises, for a processor has no arithmetic to hide them in: "
                "{output-length/200/p01/speedup} times at two hundred tokens, {output-length/500/p01/speedup} at five "
                "hundred, and growing. The time between tokens, {output-length/500/p01/itl_ms} ms, no longer depends "
                "on the length of the answer, or of the prompt ({prompt-length/64/p01/itl_ms} ms behind the shortest, "
                "{prompt-length/512/p01/itl_ms} behind the longest). The prompt itself costs what it did: the first "
                "token behind the longest comes after {prompt-length/512/p01/ttft_ms} ms with the cache and "
                "{prompt-length/512/p00/ttft_ms} without."
            ),
            loses=(
                "Against the bytes: {output-length/500/p01/times_floor} times the prediction. The prediction is "
                "the weights' way through memory; a step also asks torch for some dozens of small operations per "
                "layer, which find the processor's caches swept by those weights."
            ),
        ),
    },
    step="Keeps keys and values, so a token costs one row: {chat/all/p01/rows} rows in all.",
)
