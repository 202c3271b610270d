"""How much does attention cost if it reads the pages itself, and where does a step's time go then?"""

from gradus.bench.declare.declaration import Benchmark, Row, Table
from gradus.bench.predict.prediction import reusing
from gradus.bench.workloads import burst, single_stream

# The phase on a CPU is p06: there is nothing to measure.

# The final engine with this phase's idea and the fused kernels around it, and without what p10 adds
FUSED = "final-graphs-overlap"
COLUMNS = ("output_tok_s", "ttft_ms", "itl_ms_p99", "host_us", "peak_mb")


def _alone(prompt: int) -> Row:
    return Row(f"{prompt:,}", prompt, {"cuda": single_stream(prompt, 128)}, batch=1)


def _together(batch: int) -> Row:
    return Row(str(batch), batch, {"cuda": burst(batch, 512, 128)}, batch=batch)


BENCHMARK = Benchmark(
    question="Pages read where they lie: what is left between a step and its bytes?",
    prediction=(
        "A gathered decode moves every key and value three times, a kernel that knows the block table once: where the "
        "cache's bytes are most of a step (many sequences, long contexts) the step shrinks by up to two thirds of "
        "them. Where a step is mostly launches (one sequence, a small model) what counts is their number, and "
        "attention is only a few of a layer's twenty: little changes, unless what stands around the products is fused "
        "too, as in the final engine. Each launch takes the host some microseconds, so a single stream stays far from "
        "what its weights' bytes would allow. Prompts gain least: they were one attention call already."
    ),
    policy=reusing,
    tables=(
        Table(
            name="context",
            title="One sequence, behind prompts of growing length",
            axis="tokens of prompt",
            rows=tuple(_alone(prompt) for prompt in (128, 1024, 4096, 16384)),
            contenders=("p06", "p09", FUSED),
            metric="itl_ms",
            columns=COLUMNS,
            against="p06",
        ),
        Table(
            name="batch",
            title="All at once, 512 tokens in",
            axis="sequences at once",
            rows=tuple(_together(batch) for batch in (1, 8, 64, 256)),
            contenders=("p06", "p09", FUSED, "transformers-batch"),
            metric="itl_ms",
            columns=COLUMNS,
            against="p06",
        ),
    ),
    profile=("p06", "p09"),
    profile_context=1024,
    step="A kernel reads the pages where they lie, nothing is gathered: {chat/all/p09/itl_ms} ms between tokens.",
)
