"""How long do decodes wait for their next token when a long prompt arrives, and what does it cost to protect them?"""

from gradus.bench.declare.declaration import Account, Benchmark, Goal, Row, Table
from gradus.bench.predict.prediction import reusing
from gradus.bench.workloads import burst, long_prompts, poisson

GOALS = {"cuda": Goal(ttft=1.0, tpot=0.05), "cpu": Goal(ttft=10.0, tpot=0.5)}
# The first long prompt comes among the others' decodes on any machine; how many more do depends on how fast it is
LONG = {"cuda": long_prompts(16, 800, 20, 8000, 0.3), "cpu": long_prompts(4, 120, 4, 512, 2.5, output=4)}
BUDGETS = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (32, 64, 128, 256, 512, 1024)}
COLUMNS = ("itl_ms", "itl_ms_p95", "itl_ms_p99", "ttft_ms_longest", "output_tok_s", "e2e_ms_p99")


def _budget(budget: int) -> Row:
    on = {device: LONG[device] for device, budgets in BUDGETS.items() if budget in budgets}
    return Row(f"{budget:,}", budget, on, batch=24, token_budget=budget)


BENCHMARK = Benchmark(
    question="A long prompt falls among steady decodes: which of them wait, and for how long?",
    prediction=(
        "Computed whole, a prompt makes one step as long as its rows take, and every decode waits for it: the slowest "
        "gaps between tokens are the prompt's own time. Cut into chunks of what the budget leaves, each step is as "
        "long as the budget's rows take, so the slowest gap shrinks with the budget, until a step's fixed costs "
        "(weights, launches) are all that is left. The prompt pays: it shares its steps with the decodes, and with a "
        "small budget it takes more of them, each of which reads the weights again. Where nothing is long, nothing "
        "changes."
    ),
    policy=reusing,
    tables=(
        Table(
            name="interference",
            title="Long prompts among steady decodes",
            axis="workload",
            rows=(Row("long prompts", 0, LONG, batch=24),),
            quick=(Row("two prompts of 192", 0, long_prompts(3, 40, 2, 192, 0.8, output=2), batch=5, token_budget=48),),
            contenders=("p05", "p06"),
            metric="itl_ms_max",
            columns=COLUMNS,
            against="p05",
        ),
        Table(
            name="budget",
            title="The same with different budgets",
            axis="tokens per step at most",
            rows=tuple(_budget(budget) for budget in sorted({*BUDGETS["cuda"], *BUDGETS["cpu"]})),
            contenders=("p06",),
            metric="itl_ms_max",
            columns=COLUMNS,
            against="first row",
        ),
        Table(
            name="arrivals",
            title="Requests that arrive by chance, up to sixteen at a time",
            axis="requests per second",
            rows=(Row("8/s", 8, {"cuda": poisson(48, 8, (32, 1000), (32, 256))}, batch=16),),
            contenders=("p03", "p05", "p06"),
            metric="ttft_ms",
            columns=("ttft_ms_p99", "itl_ms", "itl_ms_p95", "itl_ms_p99", "output_tok_s", "goodput"),
            against="p03",
            goals=GOALS,
        ),
        Table(
            name="concurrent",
            title="Thirty-two requests at once, nothing long: what paging and budgets cost",
            axis="workload",
            rows=(
                Row(
                    "concurrent",
                    0,
                    {"cuda": burst(32, (32, 256), (32, 256)), "cpu": burst(32, (16, 64), (16, 64))},
                    batch=32,
                ),
            ),
            contenders=("p03", "p06", "transformers-batch"),
            columns=("ttft_ms", "itl_ms", "itl_ms_p99", "e2e_ms_p99", "peak_mb"),
            against="p03",
        ),
    ),
    profile=("p05", "p06"),
    accounts={
        "h200": Account(
            explains=(
                "Whole, a prompt of eight thousand tokens takes a step of {interference/long prompts/p05/itl_ms_max} "
                "ms, and every decode waits for it; in chunks of two thousand the slowest gaps are "
                "{interference/long prompts/p06/itl_ms_max} ms, {interference/long prompts/p06/speedup} times shorter, "
                "at the same tokens per second. The prompt pays for it: its first token comes after "
                "{interference/long prompts/p06/ttft_ms_longest} ms instead of "
                "{interference/long prompts/p05/ttft_ms_longest}. The budget is the knob between the two. Below the "
                "usual one there is little more to win: at the smallest the gaps are {budget/256/p06/itl_ms_max} ms, "
                "for a step's launches are all that is left of it. And since the prompt then takes eight times as many "
                "steps, each with its own reading of the weights and of what is in the cache already, most steps have "
                "a chunk in them and the prompt's first token comes late, after {budget/256/p06/ttft_ms_longest} ms."
            ),
            loses=(
                "Where nothing is long it brings nothing ({concurrent/concurrent/p06/speedup} times p03's tokens per "
                "second), and the sequences that share a first step wait for the last chunk of each other: the slowest "
                "first token of thirty-two comes a step later. And a gap with a chunk in it is still longer than the "
                "usual one ({interference/long prompts/p06/itl_ms_max} against "
                "{interference/long prompts/p06/itl_ms} ms)."
            ),
        ),
        "cpu": Account(
            explains=(
                "A prompt of five hundred tokens is a step of {interference/long prompts/p05/itl_ms_max} ms when it "
                "comes whole. Cut in two, the slowest gap is {interference/long prompts/p06/itl_ms_max} ms, and with "
                "the smallest budget {budget/32/p06/itl_ms_max}. A processor's steps grow with every row, so there is "
                "no floor of launches to hit: the gap follows the budget all the way down. What stops it is the other "
                "end of the bargain, the prompt's own first token: after "
                "{interference/long prompts/p05/ttft_ms_longest} ms whole, {budget/32/p06/ttft_ms_longest} in the "
                "smallest pieces."
            ),
            loses=(
                "The thirty-two short prompts, which would all fit one step without a budget, are spread over several, "
                "in which the first of them decode already: the slowest gap there is "
                "{concurrent/concurrent/p06/itl_ms_p99} ms, against p03's {concurrent/concurrent/p03/itl_ms_p99}."
            ),
        ),
    },
    step="Prompts are cut to a budget per step: {chat/all/p06/itl_ms_max} ms is the worst gap between tokens.",
)
