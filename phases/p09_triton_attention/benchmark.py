"""What does attention cost that reads the pages itself, and what is left of a step when the small launches fuse?"""

from gradus.bench.declaration import Benchmark, Goal, Row, Table
from gradus.bench.prediction import reusing
from gradus.bench.workloads import burst, long_prompts, poisson, single_stream

# On a CPU the phase is p06: there is nothing to measure.
GOALS = {"cuda": Goal(ttft=0.5, tpot=0.05)}
COLUMNS = ("output_tok_s", "ttft_ms", "itl_ms_p99", "host_us", "peak_mb")


def _alone(prompt: int) -> Row:
    return Row(f"{prompt:,}", prompt, {"cuda": single_stream(prompt, 128)}, batch=1)


def _together(batch: int) -> Row:
    return Row(str(batch), batch, {"cuda": burst(batch, 512, 128)}, batch=batch)


BENCHMARK = Benchmark(
    question="Pages read where they lie, and a layer in a few launches: what is left between a step and its bytes?",
    prediction=(
        "A gathered decode moves every key and value three times, a kernel that knows the block table once: where the "
        "cache's bytes are most of a step (many sequences, long contexts) the step shrinks by up to two thirds of "
        "them. Where a step is mostly launches (one sequence, a small model) what counts is their number: more than "
        "twenty a layer become six to nine. Each still takes the host some microseconds to start, so a single stream "
        "stays far from what its weights' bytes would allow. Prompts gain least: they were one attention call already."
    ),
    policy=reusing,
    tables=(
        Table(
            name="context",
            title="One sequence, behind prompts of growing length",
            axis="tokens of prompt",
            rows=tuple(_alone(prompt) for prompt in (128, 1024, 4096, 16384)),
            contenders=("p06", "p09"),
            metric="itl_ms",
            columns=COLUMNS,
            against="p06",
        ),
        Table(
            name="batch",
            title="Everybody at once, 512 tokens in",
            axis="sequences at once",
            rows=tuple(_together(batch) for batch in (1, 8, 64, 256)),
            contenders=("p06", "p09", "transformers-batch"),
            metric="itl_ms",
            columns=COLUMNS,
            against="p06",
        ),
        Table(
            name="interference",
            title="Long prompts among steady decodes",
            axis="workload",
            rows=(Row("long prompts", 0, {"cuda": long_prompts(16, 400, 6, 8000, 1.0)}, batch=24),),
            contenders=("p06", "p09"),
            metric="itl_ms_p99",
            columns=("itl_ms", "itl_ms_p95", "ttft_ms_longest", "output_tok_s"),
            against="p06",
        ),
        Table(
            name="arrivals",
            title="Requests that arrive by chance, up to thirty-two at a time",
            axis="requests a second",
            rows=(Row("16/s", 16, {"cuda": poisson(96, 16, (32, 1000), (32, 256))}, batch=32),),
            contenders=("p06", "p09"),
            metric="ttft_ms",
            columns=("ttft_ms_p99", "itl_ms", "itl_ms_p95", "itl_ms_p99", "output_tok_s", "goodput"),
            against="p06",
            goals=GOALS,
        ),
    ),
    profile=("p06", "p09"),
    profile_context=1024,
)
