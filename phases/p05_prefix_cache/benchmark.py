"""How much is gained when a prefix is not computed a second time, and what does looking for it cost?"""

import math

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import reusing
from gradus.bench.workloads import burst, conversations, few_shot, shared_prefix

PREFIXES = {"cuda": (512, 2048), "cpu": (256, 1024)}


def _system_prompt(prefix: int) -> Row:
    on = {}
    if prefix in PREFIXES["cuda"]:
        on["cuda"] = shared_prefix(65, math.inf, prefix, (32, 128), 64, lead=2.0)
    if prefix in PREFIXES["cpu"]:
        on["cpu"] = shared_prefix(9, math.inf, prefix, (8, 32), 16, lead=12.0)
    return Row(f"{prefix:,}", prefix, on, batch=64)


COLUMNS = ("ttft_ms_p99", "output_tok_s", "itl_ms", "e2e_ms_p99", "hit")

BENCHMARK = Benchmark(
    question="Requests that begin alike: what is gained when their common beginning is computed only once?",
    prediction=(
        "A prompt's first token waits for the prompt's rows, so where nine tenths of the rows are found in the cache, "
        "the wait shrinks towards a single step's; and for many requests at once, towards a tenth. Tokens per second "
        "grow by the prompts' share of the work. The time between tokens stays as it is: decodes read the same keys "
        "and values, found or computed. Where nothing is shared, looking costs microseconds per prompt."
    ),
    policy=reusing,
    tables=(
        Table(
            name="system-prompt",
            title="One system prompt: a first request, then all the others at once",
            axis="tokens shared",
            rows=tuple(_system_prompt(prefix) for prefix in sorted({*PREFIXES["cuda"], *PREFIXES["cpu"]})),
            quick=(Row("128", 128, shared_prefix(5, math.inf, 128, (4, 8), 4, lead=3.0), batch=8),),
            contenders=("p04", "p05"),
            metric="ttft_ms",
            columns=COLUMNS,
            against="p04",
        ),
        Table(
            name="few-shot",
            title="Several tasks, each with its examples before every question",
            axis="workload",
            rows=(
                Row(
                    "few-shot",
                    0,
                    {"cuda": few_shot(8, 8, 1024, 64, 32), "cpu": few_shot(2, 6, 256, 16, 8)},
                    batch=8,
                ),
            ),
            contenders=("p04", "p05"),
            metric="ttft_ms",
            columns=COLUMNS,
            against="p04",
        ),
        Table(
            name="chat",
            title="Conversations: every turn sends all that was said before",
            axis="workload",
            rows=(
                Row(
                    "chat",
                    0,
                    {
                        "cuda": conversations(16, 4, 128, 64, 96, 0.5, system=512),
                        "cpu": conversations(3, 3, 64, 32, 24, 0.5, system=128),
                    },
                    batch=16,
                ),
            ),
            contenders=("p04", "p05"),
            metric="ttft_ms",
            columns=COLUMNS,
            against="p04",
        ),
        Table(
            name="nothing-shared",
            title="Prompts that have nothing in common",
            axis="workload",
            rows=(
                Row(
                    "nothing shared",
                    0,
                    {"cuda": burst(64, (128, 512), 64), "cpu": burst(12, (32, 128), 16)},
                    batch=32,
                ),
            ),
            contenders=("p04", "p05"),
            columns=("ttft_ms", "itl_ms", "itl_ms_p99", "host_us", "hit"),
            against="p04",
        ),
    ),
    profile=("p04", "p05"),
    step="The system prompt is shared: {chat/all/p05/hit} of the prompt tokens are found, not computed.",
)
