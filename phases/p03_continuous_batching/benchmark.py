"""How much is gained when no sequence waits for the longest answer of its batch?"""

from gradus.bench.declare.declaration import Benchmark, Goal, Row, Table
from gradus.bench.predict.prediction import continuous
from gradus.bench.workloads import PUBLISHED, burst, poisson

COLUMNS = ("ttft_ms", "ttft_ms_p99", "itl_ms", "itl_ms_p95", "itl_ms_p99", "e2e_ms_p99", "padding")
GOALS = {"cuda": Goal(ttft=0.5, tpot=0.05), "cpu": Goal(ttft=5.0, tpot=0.5)}
RATES = {"cuda": (4, 8, 16), "cpu": (0.3, 0.6)}


def _arrivals(rate: float) -> Row:
    on = {}
    if rate in RATES["cuda"]:
        on["cuda"] = poisson(48, rate, (32, 256), (32, 256))
    if rate in RATES["cpu"]:
        on["cpu"] = poisson(12, rate, (16, 64), (16, 64))
    return Row(f"{rate:g}/s", rate, on, batch=16)


def _published(name: str) -> Row:
    return Row(name, 0, {"cuda": PUBLISHED[name]()}, batch=1 if "sequential" in name else 16)


BENCHMARK = Benchmark(
    question="Answers of all lengths, and requests that come when they like: what does choosing the batch anew bring?",
    prediction=(
        "A static batch computes a row for each of its sequences until the longest is done, so with evenly mixed "
        "lengths nearly half of the decode rows are filler, and a request that comes meanwhile waits for all of it. "
        "Chosen anew at every step, no row is filler and a newcomer waits one step: more tokens per second when all "
        "requests are there from the start, and above all an earlier first token when they are not. The price: a "
        "newcomer's prompt lengthens that one step for all sequences, which shows in the slowest gaps between tokens."
    ),
    policy=continuous,
    tables=(
        Table(
            name="mixed-lengths",
            title="All at once, mixed lengths, eight at a time",
            axis="workload",
            rows=(
                Row(
                    "mixed",
                    0,
                    {"cuda": burst(64, (32, 256), (32, 256)), "cpu": burst(24, (16, 64), (16, 64))},
                    batch=8,
                ),
            ),
            quick=(Row("mixed lengths", 0, burst(10, (2, 8), (2, 24)), batch=4),),
            quick_title="All at once, mixed lengths, four at a time",
            contenders=("p02", "p03", "transformers-batch"),
            columns=COLUMNS,
            against="p02",
        ),
        Table(
            name="arrivals",
            title="Requests that arrive by chance, up to sixteen at a time",
            axis="requests per second",
            rows=tuple(_arrivals(rate) for rate in sorted({*RATES["cpu"], *RATES["cuda"]})),
            contenders=("p02", "p03", "transformers-batch"),
            metric="ttft_ms",
            columns=("ttft_ms_p99", "itl_ms", "itl_ms_p95", "itl_ms_p99", "output_tok_s", "goodput", "padding"),
            against="p02",
            goals=GOALS,
        ),
        Table(
            name="published",
            title="Serving runs that others have published, up to sixteen at a time",
            axis="run",
            rows=tuple(_published(name) for name in PUBLISHED),
            contenders=("p02", "p03"),
            columns=("ttft_ms", "ttft_ms_p99", "itl_ms", "itl_ms_p99", "requests_s", "goodput", "padding"),
            against="p02",
            scale="names",
            goals=GOALS,
        ),
    ),
    profile=("p01", "p03"),
    step="A slot that comes free is taken in the next step: {chat/all/p03/tokens_a_step} tokens per step, no filler.",
)
