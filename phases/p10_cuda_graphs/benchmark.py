"""How long is a step when its kernels are not launched one by one, and the host does not wait for its tokens?"""

from gradus.bench.declare.declaration import Benchmark, Goal, Row, Table
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
    step="Steps are replayed from graphs and planned ahead: {chat/all/p10/itl_ms} ms between tokens.",
)
