"""Benchmarks of more than one engine: ladder, ablation of the final engine, every workload, decoding on a processor.

Each but the last has a size for a GPU and a smaller one for a CPU. No torch here.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from gradus import phases
from gradus.bench import workloads
from gradus.bench.declare.declaration import LLAMA_CPP, Benchmark, ByDevice, Goal, Row, Table, in_scheme
from gradus.bench.workloads import (
    Job,
    Workload,
    burst,
    long_prompts,
    memory_pressure,
    poisson,
    shared_prefix,
    single_stream,
)
from gradus.config.options import FINAL

LADDER, ABLATION, MATRIX, CPU_DECODE = "ladder", "ablation", "matrix", "cpu-decode"

PAGE = 16  # positions: a sequence's last page is half empty on average


Work = dict[str, Workload]
"""A workload for each device."""


def cache_for(works: Iterable[Workload]) -> int:
    """Cache positions that hold any of these workloads with all its sequences at once. A conversation takes what its
    last turn does."""
    return max(sum(job.prompt + job.output + PAGE for job in _last_turns(work)) for work in works)


def _last_turns(work: Workload) -> Iterator[Job]:
    followed = {job.follows for job in work.jobs}
    return (job for index, job in enumerate(work.whole) if index not in followed)


# -- the ladder --------------------------------------------------------------------------------------------------------


def ladder() -> Benchmark:
    """One workload, every phase, the final engine and the peers, in the same memory for keys and values.

    Each phase's own benchmark says what its rung adds (`step`).
    """
    rungs = tuple(phase.name for phase in phases.available() if phase.has("benchmark"))
    devices = ("cpu", "cuda")
    chat = Row("all", 0, {device: workloads.ladder(device) for device in devices},
               context=CONTEXT, cache_tokens=MEMORY, token_budget=BUDGET)  # fmt: skip
    return Benchmark(
        question="Chat traffic in a fixed memory, one phase after the other: what does each step bring?",
        prediction=(
            "Each phase is predicted by its own schedule, played through with the roofline as its clock; memory counts "
            "for those that reserve a slot per sequence, and is taken to suffice for pages. Every idea has its moment: "
            "a cache saves rows, a batch saves readings of the weights, and choosing it anew saves filler. Pages let "
            "more sequences into the same memory, and a shared system prompt need not be computed again: both shorten "
            "the queue, so the first token comes earlier. Prompts in one step with decodes open gaps between tokens, "
            "the longer the prompt the worse, until chunks close them. Kernels, graphs and plans made ahead shorten "
            "every step on a GPU; on a CPU they have no place, and their rungs are left out."
        ),
        tables=(
            Table(
                name="chat",
                title="The ladder",
                axis="workload",
                rows=(chat,),
                contenders=(*rungs, FINAL, *STEPS_OF_PEERS),
                columns=("ttft_ms", "itl_ms_max", "itl_ms", "tokens_a_step", "rows", "padding", "hit", "peak_mb"),
                against=rungs[0] if rungs else None,
                panels=("output_tok_s", "ttft_ms", "itl_ms_max"),
                gpu_only=("p09", "p10"),
                once_s=10.0,
            ),
        ),
    )


CONTEXT = {"cpu": 576, "cuda": 8192}
"""Positions per slot: a server cannot know in advance how long a sequence will be."""
MEMORY = {"cpu": 3 * 576, "cuda": 4 * 8192}
BUDGET = {"cpu": 96, "cuda": 1024}


STEP_OF_FINAL = (
    "All of it in the form that serves, with kernels for the whole step: {chat/all/final/itl_ms} ms between tokens."
)
STEPS_OF_PEERS = {
    "transformers": "One request at a time with a cache, as p01; memory is not limited.",
    "transformers-batch": "Pages and a batch chosen anew, as p04; memory is not limited.",
}


# -- the ablation ------------------------------------------------------------------------------------------------------

# Graphs are made of kernels, so without kernels there are none.
OFF = ("prefix_cache", "chunked", "overlap", "graphs", "kernels-graphs")

# Prompts arrive so often that one gap in fifty contains one, for as long as the fastest engine decodes.
WORK: dict[str, Work] = {
    "one alone": {"cuda": single_stream(128, 256), "cpu": single_stream(24, 12)},
    "many alike": {"cuda": burst(64, 512, 128), "cpu": burst(4, 32, 8)},
    "a mixed crowd": {"cuda": burst(256, (100, 800), (64, 192)), "cpu": burst(8, (16, 48), (4, 12))},
    "system prompt": {
        "cuda": shared_prefix(65, math.inf, 2048, (32, 128), 64, lead=0.5),
        "cpu": shared_prefix(5, math.inf, 128, (8, 24), 6, lead=1.5),
    },
    "long prompts": {
        "cuda": long_prompts(16, 400, 8, 8000, 0.06),
        "cpu": long_prompts(4, 40, 2, 256, 0.8, output=4),
    },
}
CUT = {"cuda": 1024, "cpu": 64}  # a budget that cuts the long prompts


def ablation() -> Benchmark:
    """The final engine, and the same with one optimization left out, on workloads that need them."""
    contenders = (FINAL, *(f"{FINAL}-{switch}" for switch in OFF))
    return Benchmark(
        question="Everything is switched on: which of it is missed when it is left out?",
        prediction=(
            "Speed-ups that were measured one on top of the other need not add up. Kernels should be missed wherever "
            "anything decodes, for they leave both fewer bytes and fewer launches; graphs where a step is shorter than "
            "the host takes to launch it, so most by a single stream and hardly by a crowd; overlap where the host's "
            "work grows with the number of sequences. The prefix cache and chunks change nothing unless prompts share "
            "a beginning or are longer than a step's budget, and cost nothing then. On a CPU, where there are no "
            "kernels, graphs or overlap to lose, only those two can show."
        ),
        tables=(
            Table(
                name="throughput",
                title="One alone, many at once, and a crowd of mixed lengths",
                axis="workload",
                rows=tuple(_roomy(name, x) for x, name in enumerate(("one alone", "many alike", "a mixed crowd"))),
                contenders=contenders,
                columns=("ttft_ms", "itl_ms", "itl_ms_p99", "host_us", "peak_mb"),
                against=FINAL,
                scale="names",
            ),
            Table(
                name="shared-prefix",
                title="A long system prompt: a first request, then all the others at once",
                axis="workload",
                rows=(_roomy("system prompt"),),
                contenders=contenders,
                metric="ttft_ms",
                columns=("ttft_ms_p99", "output_tok_s", "itl_ms", "hit"),
                against=FINAL,
            ),
            Table(
                name="interference",
                title="Long prompts among steady decodes, with a budget that cuts them",
                axis="workload",
                rows=(_roomy("long prompts", token_budget=CUT),),
                contenders=contenders,
                metric="itl_ms_p99",
                columns=("itl_ms", "itl_ms_p95", "ttft_ms_longest", "output_tok_s"),
                against=FINAL,
            ),
        ),
    )


def _roomy(name: str, x: float = 0, token_budget: ByDevice = None) -> Row:
    """A row with as much cache as the real lengths need.

    (The longest length for every request, for all contenders at once, would exceed a GPU's memory.)
    """
    cache = {device: cache_for([work]) for device, work in WORK[name].items()}
    return Row(name, x, WORK[name], cache_tokens=cache, token_budget=token_budget)


# -- the matrix --------------------------------------------------------------------------------------------------------

BATCHING = ("p03", "p04", "p05", "p06", "p09", "p10", FINAL)
"""p03 to p06 pay for every operation's launch, so answers are short; more steps would show nothing new."""
GOALS = {"cuda": Goal(ttft=0.5, tpot=0.05), "cpu": Goal(ttft=10.0, tpot=0.5)}
POOL = {"cuda": 16_384, "cpu": 1024}


def matrix() -> Benchmark:
    """Every kind of workload, for every phase that batches as a server would, and for the final engine."""
    return Benchmark(
        question="What did each phase change, on the workloads that it was not made for as well?",
        prediction=(
            "Each optimization is made for one kind of workload and should leave the others as they are: pages for "
            "memory that is short, the prefix cache for common beginnings, chunks for long prompts among decodes, "
            "kernels for long contexts and many sequences, graphs and overlap for steps that are shorter than their "
            "launch. What costs time where it does not help is a loss, and stands here as well."
        ),
        tables=(
            _kind(
                "single-stream",
                "One user alone",
                Row("one request", 0, {"cuda": single_stream(128, 96), "cpu": single_stream(32, 16)}),
                "itl_ms",
                ("output_tok_s", "ttft_ms", "itl_ms_p99", "host_us", "peak_mb"),
            ),
            _kind(
                "burst",
                "All at once",
                Row("burst", 0, {"cuda": burst(64, 256, 64), "cpu": burst(6, 48, 8)}),
                "output_tok_s",
                ("ttft_ms", "itl_ms", "itl_ms_p99", "host_us", "peak_mb"),
            ),
            _kind(
                "arrivals",
                "Mixed lengths that arrive by chance",
                Row("Poisson", 0, ARRIVALS, batch=32),
                "ttft_ms",
                ("ttft_ms_p99", "itl_ms", "itl_ms_p99", "output_tok_s", "goodput"),
            ),
            _kind(
                "shared-prefix",
                "One system prompt: a first request, then all the others at once",
                Row("shared", 0, SHARED),
                "ttft_ms",
                ("ttft_ms_p99", "output_tok_s", "itl_ms", "hit"),
            ),
            _kind(
                "long-prompts",
                "Long prompts among steady decodes",
                Row("long prompts", 0, AMONG_DECODES),
                "itl_ms_p99",
                ("itl_ms", "itl_ms_p95", "ttft_ms_longest", "output_tok_s"),
            ),
            _kind(
                "memory-pressure",
                "More than the cache holds, which is the same size for all",
                Row("pressure", 0, PRESSURE, context={"cuda": 1024, "cpu": 256}, cache_tokens=POOL),
                "output_tok_s",
                ("ttft_ms", "e2e_ms_p99", "waste", "preemptions", "cache_mb"),
            ),
            _sixteen(),
        ),
    )


ARRIVALS: Work = {"cuda": poisson(40, 24, (32, 512), (16, 64)), "cpu": poisson(6, 2, (16, 64), (4, 12))}
SHARED: Work = {
    "cuda": shared_prefix(33, math.inf, 1024, (32, 128), 32, lead=0.5),
    "cpu": shared_prefix(5, math.inf, 128, (8, 24), 6, lead=1.5),
}
AMONG_DECODES: Work = {
    "cuda": long_prompts(16, 200, 3, 6000, 0.06),
    "cpu": long_prompts(4, 32, 2, 256, 0.6, output=4),
}
PRESSURE: Work = {
    "cuda": memory_pressure(POOL["cuda"], 1.5, 336, 48),
    "cpu": memory_pressure(POOL["cpu"], 1.5, 56, 12),
}


def _sixteen() -> Table:
    """The phases where nothing is shared, long, late or short of memory: little matters but the cost of a step."""
    row = Row("all", 0, {device: workloads.sixteen(device) for device in ("cpu", "cuda")})
    return Table(
        name="sixteen",
        title="Sixteen at once, nothing shared and nothing long",
        axis="workload",
        rows=(row,),
        contenders=("p01", "p02", *BATCHING),
        columns=("ttft_ms", "itl_ms", "itl_ms_p99", "padding", "peak_mb"),
        against="p01",
    )


def _kind(name: str, title: str, row: Row, metric: str, columns: tuple[str, ...]) -> Table:
    """A table of one workload, with the metrics that matter for this kind."""
    return Table(
        name, title, "workload", (row,), BATCHING, metric, columns, against=BATCHING[0], scale="log", goals=GOALS
    )


# -- decoding on a processor -------------------------------------------------------------------------------------------

SCHEMES = (None, "int8", "int4")
DECODING: dict[str, Workload] = {
    "one alone": single_stream(32, 96),
    "one, long context": single_stream(968, 32),
    "8 at once": burst(8, 32, 32),
    "16 at once": burst(16, 32, 24),
}


def cpu_decode() -> Benchmark:
    """The final engine and llama.cpp, each in three widths of weights, where there is no GPU."""
    return Benchmark(
        question="How fast does a laptop decode?",
        prediction=(
            "As fast as its memory: every token of a single stream reads all weights once, so the floor of a step is "
            "their bytes over the bandwidth, and halving the bytes halves it. What an engine adds is what happens "
            "between its products: starting threads, small operations, waiting at the end of each. llama.cpp and our "
            "kernels have both made that short, and should be close to the floor in sixteen bits. In eight and four "
            "the floor falls, and what is left over weighs more; unpacking weights may also take longer than fetching "
            "them. Without its kernels the engine pays for hundreds of torch operations per step, most of all where "
            "weights are few. A long context adds keys and values: theirs are sixteen bits wide, ours as wide as the "
            "activations. Several sequences share a reading of the weights, so each token is cheaper until arithmetic "
            "takes longer than memory, which on two cores it soon does. Beyond the rows that our kernels take, a step "
            "runs in torch."
        ),
        tables=(
            Table(
                name="decode",
                title="Decoding, one sequence and several",
                axis="workload",
                rows=tuple(Row(name, x, {"cpu": work}) for x, (name, work) in enumerate(DECODING.items())),
                contenders=(
                    *(in_scheme(FINAL, scheme) for scheme in SCHEMES),
                    f"{FINAL}-kernels-graphs",
                    *(in_scheme(LLAMA_CPP, scheme) for scheme in SCHEMES),
                ),
                metric="sequence_tok_s",
                columns=("itl_ms", "itl_ms_p99", "output_tok_s", "ttft_ms", "memory_share", "peak_mb"),
                against=LLAMA_CPP,
                scale="names",
            ),
        ),
    )


SUITES: dict[str, Callable[[], Benchmark]] = {
    LADDER: ladder,
    ABLATION: ablation,
    MATRIX: matrix,
    CPU_DECODE: cpu_decode,
}
