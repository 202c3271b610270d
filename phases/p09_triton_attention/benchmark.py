"""How much does attention cost if it reads the pages itself, and where does a step's time go then?"""

from gradus.bench.declare.declaration import Account, Benchmark, Row, Table
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
    accounts={
        "h200": Account(
            explains=(
                "With Llama-3.2-1B and up to four thousand tokens of prompt a step is the host's: behind a thousand "
                "tokens p06 takes {random:llama-3.2-1b, bfloat16: context/1,024/p06/itl_ms} ms and p09 "
                "{random:llama-3.2-1b, bfloat16: context/1,024/p09/itl_ms}, and p09's host works for "
                "{random:llama-3.2-1b, bfloat16: context/1,024/p09/host_us} µs per step. So what shows there is the "
                "number of launches alone, {random:llama-3.2-1b, bfloat16: context/1,024/p09/speedup} times. (From row "
                "to row this host was up to half as slow again. Within a row contenders take turns, so read ratios.) "
                "At sixteen thousand p06's copies have outgrown the launches, by more than their bytes "
                "explain. p09 reads the pages where they lie, but one program per head goes through the whole context "
                "while most of the GPU has nothing to do: {random:llama-3.2-1b, bfloat16: context/16,384/p09/itl_ms} "
                "ms instead of {random:llama-3.2-1b, bfloat16: context/16,384/p06/itl_ms}, and with Qwen3-0.6B, of "
                "more layers, {context/16,384/p09/itl_ms} and {context/16,384/p06/itl_ms}. The final engine's kernel "
                "deals a context out to many programs, and without graphs and overlap it hides all that behind the "
                "host still: {random:llama-3.2-1b, bfloat16: context/16,384/final-graphs-overlap/itl_ms} ms and "
                "{context/16,384/final-graphs-overlap/itl_ms}. Eight sequences at once are {random:llama-3.2-1b, "
                "bfloat16: batch/8/p09/speedup} times as fast as p06's, and two hundred and fifty-six, with that many "
                "more bytes not copied and a program for each, {random:llama-3.2-1b, bfloat16: batch/256/p09/speedup} "
                "times."
            ),
            loses=(
                "Prompts: behind the longest, the first token comes after {random:llama-3.2-1b, bfloat16: "
                "context/16,384/p09/ttft_ms} ms, p06's after {random:llama-3.2-1b, bfloat16: "
                "context/16,384/p06/ttft_ms}, because torch's attention over gathered keys uses the GPU better than a "
                "kernel of this size. And a single stream: behind a thousand tokens it is at {random:llama-3.2-1b, "
                "bfloat16: context/1,024/p09/times_floor} times its floor with Llama-3.2-1B and at "
                "{context/1,024/p09/times_floor} with Qwen3-0.6B, for the GPU waits for the host. Fewer launches make "
                "less of a difference than their number, for Python takes longer to start one of Triton's than one of "
                "torch's."
            ),
        ),
    },
    step="A kernel reads the pages where they lie, nothing is gathered: {chat/all/p09/itl_ms} ms between tokens.",
)
