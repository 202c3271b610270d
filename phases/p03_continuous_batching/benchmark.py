"""How much is gained when no sequence waits for the longest answer of its batch?"""

from gradus.bench.declare.declaration import Account, Benchmark, Goal, Row, Table
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
    accounts={
        "h200": Account(
            explains=(
                "With all requests there from the start and eight slots, {mixed-lengths/mixed/p03/speedup} times the "
                "tokens per second: a slot that comes free is taken in the next step, so there are fewer steps, and "
                "{mixed-lengths/mixed/p03/padding} of the rows are filler, not {mixed-lengths/mixed/p02/padding}. "
                "Predicted was more, for the prediction counts bytes and operations; a step of this phase takes the "
                "host longer ({mixed-lengths/mixed/p03/itl_ms} against {mixed-lengths/mixed/p02/itl_ms} ms between "
                "tokens), since prompts and decodes are attended to apart. Where requests come one by one the gain is "
                "of another kind. With sixteen per second a newcomer waits {arrivals/16/s/p02/ttft_ms} ms for its "
                "first token while a static batch runs to its end, and {arrivals/16/s/p03/ttft_ms} ms here, "
                "{arrivals/16/s/p03/speedup} times less, for about as many tokens per second: the arrivals set those, "
                "not the engine. What is left of the wait is a step or two, {arrivals/16/s/p03/times_floor} times the "
                "prediction, which is again the host's share. The published runs say the same of a larger model: with "
                "six requests per second, most of them long, the first token comes after {random:llama-3.2-1b, "
                "bfloat16: published/48 at 6/s, 75 % long/p03/ttft_ms} ms instead of {random:llama-3.2-1b, bfloat16: "
                "published/48 at 6/s, 75 % long/p02/ttft_ms}, at much the same tokens per second."
            ),
            loses=(
                "The slowest gaps between tokens grow, from {mixed-lengths/mixed/p02/itl_ms_p99} to "
                "{mixed-lengths/mixed/p03/itl_ms_p99} ms: a newcomer's prompt is in every sequence's step. A single "
                "decode costs more than p01's, for its slot must be looked up. And where all answers are equally long, "
                "as in the published burst, static batches have hardly any filler to save, and what choosing anew "
                "costs the host is left: {random:llama-3.2-1b, bfloat16: published/burst of 48/p03/speedup} times."
            ),
        ),
        "cpu": Account(
            explains=(
                "With all requests there from the start, {mixed-lengths/mixed/p03/speedup} times the tokens per "
                "second: {mixed-lengths/mixed/p03/rows} rows instead of {mixed-lengths/mixed/p02/rows}, of which "
                "{mixed-lengths/mixed/p02/padding} were filler. Requests that come one by one gain in waiting: at the "
                "higher rate the first token comes after {arrivals/0.6/s/p03/ttft_ms} ms instead of "
                "{arrivals/0.6/s/p02/ttft_ms}, at the same tokens per second, for it is the arrivals that set those."
            ),
            loses=(
                "The slowest gaps between tokens: {mixed-lengths/mixed/p03/itl_ms_p99} ms against "
                "{mixed-lengths/mixed/p02/itl_ms_p99}. A newcomer's prompt is in every sequence's step, and here its "
                "rows are not free. And with more sequences alive at a time, each of them waits longer for its next "
                "token ({arrivals/0.6/s/p03/itl_ms} against {arrivals/0.6/s/p02/itl_ms} ms)."
            ),
        ),
    },
    step="A slot that comes free is taken in the next step: {chat/all/p03/tokens_a_step} tokens per step, no filler.",
)
