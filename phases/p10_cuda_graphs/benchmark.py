"""How long is a step when its kernels are not launched one by one, and the host does not wait for its tokens?"""

from gradus.bench.declare.declaration import Account, Benchmark, Goal, Row, Table
from gradus.bench.predict.prediction import reusing
from gradus.bench.workloads import burst, poisson, single_stream

# The phase on a CPU is p06, one step ahead: there is no device to overlap with, and nothing to measure.
GOALS = {"cuda": Goal(ttft=0.5, tpot=0.05)}
COLUMNS = ("output_tok_s", "ttft_ms", "itl_ms_p99", "host_us", "peak_mb")
CONTENDERS = ("p09", "p10", "final")
BUDGET = 8192  # the same for all, so that none has its prompts in fewer steps
SLOTS = 72  # so that a batch of 65 has a next captured size


def _together(batch: int) -> Row:
    return Row(str(batch), batch, {"cuda": burst(batch, 512, 128)}, batch=batch, token_budget=BUDGET)


def _padded(count: int) -> Row:
    return Row(str(count), count, {"cuda": burst(count, 512, 128)}, slots=SLOTS, token_budget=BUDGET)


BENCHMARK = Benchmark(
    question="A decode replayed from a graph, and planned before the last one is known: does the GPU still wait?",
    prediction=(
        "A step of p09 takes the longer of two times: what the GPU computes, and what the host needs to plan it, "
        "launch its kernels one by one and record it. Replayed, the launches are one call, so where the host was the "
        "longer (one sequence, a small model) the step shrinks to what the GPU computes and about a microsecond per "
        "kernel. Where the GPU is the longer (many sequences, long contexts) graphs bring little, and overlap takes "
        "away what the host does between two steps: scheduling and committing, which grow with the batch. A padded "
        "batch computes rows that no sequence asked for, from a tenth more to three fifths: in products that are a "
        "stream of weights up to some 64 rows anyway, and not in attention. Prompts are launched one by one as before. "
        "The final engine has the draw inside its graphs, and fewer and better kernels in them."
    ),
    policy=reusing,
    tables=(
        Table(
            name="alone",
            title="One sequence, 128 tokens in and 512 out",
            axis="sequences at once",
            rows=(Row("1", 1, {"cuda": single_stream(128, 512)}, batch=1, token_budget=BUDGET),),
            contenders=CONTENDERS,
            metric="itl_ms",
            columns=COLUMNS,
            against="p09",
        ),
        Table(
            name="batch",
            title="All at once, 512 tokens in and 128 out",
            axis="sequences at once",
            rows=tuple(_together(batch) for batch in (1, 8, 64, 256)),
            contenders=CONTENDERS,
            metric="itl_ms",
            columns=COLUMNS,
            against="p09",
        ),
        Table(
            name="arrivals",
            title="Requests that arrive by chance, up to thirty-two at a time",
            axis="requests per second",
            rows=(
                Row(
                    "16/s",
                    16,
                    {"cuda": poisson(96, 16, (32, 1000), (32, 256))},
                    batch=32,
                    token_budget=BUDGET,
                ),
            ),
            contenders=CONTENDERS,
            metric="ttft_ms",
            columns=("ttft_ms_p99", "itl_ms", "itl_ms_p95", "itl_ms_p99", "output_tok_s", "goodput"),
            against="p09",
            goals=GOALS,
        ),
        Table(
            name="padding",
            title="Batches between two captured sizes: 5 run as 8, 9 as 12, 17 as 24, 33 as 40, 65 as 72",
            axis="sequences at once",
            rows=tuple(_padded(count) for count in (5, 9, 17, 33, 65)),
            contenders=CONTENDERS,
            metric="itl_ms",
            columns=("output_tok_s", "padding", "host_us"),
            against="p09",
        ),
    ),
    profile=CONTENDERS,
    profile_context=1024,
    accounts={
        "h200": Account(
            explains=(
                "A step's launches become one replay, and the host plans while the GPU works. Alone, a step of "
                "Qwen3-0.6B falls from {alone/1/p09/itl_ms} ms to {alone/1/p10/itl_ms}, {alone/1/p10/speedup} times: "
                "of p09's the host took {alone/1/p09/host_us} µs, of p10's it takes {alone/1/p10/host_us}, while the "
                "GPU runs kernels. The final engine replays in the same way, but {profile/final/kernels} kernels where "
                "p10 has {profile/p10/kernels}: norms and activations are parts of the products beside them. That "
                "takes a step to {alone/1/final/itl_ms} ms, {alone/1/final/times_floor} times the floor, because its "
                "kernels start, read a few megabytes each and drain, too short to stream at the memory's speed. (In "
                "the profile they run for longer than the step takes: they start early, and wait for each other.) "
                "Llama-3.2-1B has fewer and longer ones: p10 is {random:llama-3.2-1b, bfloat16: alone/1/p10/speedup} "
                "times as fast as p09, and the final engine {random:llama-3.2-1b, bfloat16: alone/1/final/speedup} "
                "times, at {random:llama-3.2-1b, bfloat16: alone/1/final/times_floor} times the floor. With the batch "
                "the gain shrinks as predicted, to {batch/64/p10/speedup} times and {batch/256/p10/speedup}. That the "
                "largest gains at all is the host's doing: it needs {batch/256/p09/host_us} µs for a step of p09, "
                "longer than the GPU does. There the final engine is at {batch/256/final/times_floor} times the floor."
            ),
            loses=(
                "With prompts, which are launched as before. Alone, the first token comes after {alone/1/p10/ttft_ms} "
                "ms, p09's after {alone/1/p09/ttft_ms}. In the largest batch the slowest gaps, which have prompts in "
                "them, are {batch/256/p10/itl_ms_p99} ms against {batch/256/p09/itl_ms_p99}. The final engine replays "
                "prompts as well: its first token comes after {alone/1/final/ttft_ms} ms. Padding costs "
                "little: nine sequences, which run as twelve, take {padding/9/p10/itl_ms} ms between tokens where "
                "eight take {batch/8/p10/itl_ms}, and sixty-five, as seventy-two, {padding/65/p10/itl_ms} where "
                "sixty-four take {batch/64/p10/itl_ms}."
            ),
        ),
    },
    step="Steps are replayed from graphs and planned ahead: {chat/all/p10/itl_ms} ms between tokens.",
)
