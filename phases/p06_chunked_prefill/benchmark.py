"""How long do decodes wait for their next token when a long prompt arrives, and what does it cost to protect them?"""

from gradus.bench.declare.declaration import Benchmark, Goal, Row, Table
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
    step="Prompts are cut to a budget per step: {chat/all/p06/itl_ms_max} ms is the worst gap between tokens.",
)
